"""The frozen config tree: one section per component, composed here with the two bridges' own."""

from typing import Self

from pydantic import Field, field_validator, model_validator

from asyncrl.config.checkpoint import CheckpointConfig
from asyncrl.config.critic import CriticConfig
from asyncrl.config.data import DataConfig
from asyncrl.config.environments import HarborConfig, VerifiersConfig
from asyncrl.config.gateway import GatewayConfig
from asyncrl.config.lora import LoraConfig
from asyncrl.config.parallel import ParallelConfig
from asyncrl.config.reward import RewardConfig
from asyncrl.config.rollout import InferenceConfig, PartialsConfig, RolloutConfig
from asyncrl.config.run import ClusterConfig, MetricsConfig, RunConfig, ScheduleConfig
from asyncrl.config.section import Section
from asyncrl.config.teachers import TeacherConfig
from asyncrl.config.tools import ToolsConfig
from asyncrl.config.trainer import (
    ActorConfig,
    AlgorithmConfig,
    EvalConfig,
    ModelConfig,
    StarterConfig,
    TrainerConfig,
)
from asyncrl.schedule import MODES, Schedule
from buffer.config import BufferConfig, StalenessConfig
from weightsync.config import WeightsyncConfig

__all__ = [
    "ActorConfig",
    "AlgorithmConfig",
    "BufferConfig",
    "CheckpointConfig",
    "ClusterConfig",
    "Config",
    "CriticConfig",
    "DataConfig",
    "EvalConfig",
    "GatewayConfig",
    "HarborConfig",
    "InferenceConfig",
    "LoraConfig",
    "MetricsConfig",
    "ModelConfig",
    "ParallelConfig",
    "PartialsConfig",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "ScheduleConfig",
    "Section",
    "StalenessConfig",
    "StarterConfig",
    "TeacherConfig",
    "ToolsConfig",
    "TrainerConfig",
    "VerifiersConfig",
    "WeightsyncConfig",
]


class Config(Section):
    """A whole run. A file in configs/ says everything that matters about it; a recipe says what it changes of one."""

    run: RunConfig = RunConfig()
    """Name, directory and seed."""
    mode: str = "separate_async"
    """Row of the table of modes: sync, colocate_async or separate_async. Keys set elsewhere win over the row."""
    schedule: ScheduleConfig = ScheduleConfig()
    """Groups per step, steps per version, shared devices."""
    staleness: StalenessConfig = StalenessConfig()
    """How old the weights behind a trained token may be, and what happens to groups that are older."""
    buffer: BufferConfig = BufferConfig()
    """The replay buffer over Redis."""
    weightsync: WeightsyncConfig = WeightsyncConfig()
    """The delta-sharded checkpoint engine."""
    model: ModelConfig = ModelConfig()
    """The model."""
    starter: StarterConfig | None = None
    """What to make at model.path and data.*_files when it is missing. None: nothing, they must exist."""
    data: DataConfig = DataConfig()
    """Prompts."""
    rollout: RolloutConfig = RolloutConfig()
    """Sampling and environments."""
    inference: InferenceConfig = InferenceConfig()
    """Servers."""
    gateway: GatewayConfig = GatewayConfig()
    """Harnesses that play prompts over HTTP."""
    teachers: tuple[TeacherConfig, ...] = ()
    """Models that score what the policy sampled, each for some data sources or all. An algorithm that learns from one
    takes the first of the list that scored the answer."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """Objective."""
    actor: ActorConfig = ActorConfig()
    """Optimizer of the policy."""
    lora: LoraConfig = LoraConfig()
    """A low-rank adapter that is trained in place of the model's own weights."""
    critic: CriticConfig = CriticConfig()
    """The second model of algorithms that have a critic."""
    trainer: TrainerConfig = TrainerConfig()
    """The loop, its ranks and checkpoints."""
    eval: EvalConfig = Field(default_factory=EvalConfig)
    """Held-out evaluation."""
    metrics: MetricsConfig = MetricsConfig()
    """Sinks."""
    cluster: ClusterConfig = ClusterConfig()
    """Processes."""

    @field_validator("mode")
    @classmethod
    def mode_is_a_row(cls, mode: str) -> str:
        """Refuse a mode that the table does not have."""
        if mode not in MODES:
            raise ValueError(f"mode = {mode!r} is not a mode; choose one of {', '.join(MODES)}")
        return mode

    @property
    def plan(self) -> Schedule:
        """The mode's row with the keys that were set explicitly in its place."""
        row = MODES[self.mode]
        own = self.schedule
        return Schedule(
            limit=row.limit if self.staleness.limit is None else self.staleness.limit,
            shares_gpus=row.shares_gpus if own.shares_gpus is None else own.shares_gpus,
            steps_per_version=row.steps_per_version if own.steps_per_version is None else own.steps_per_version,
            lend_trainer_gpus=row.lend_trainer_gpus if own.lend_trainer_gpus is None else own.lend_trainer_gpus,
        )

    @property
    def groups_per_version(self) -> int:
        """B of protocols: groups consumed between two versions."""
        return self.schedule.groups_per_step * self.plan.steps_per_version

    @model_validator(mode="after")
    def a_version_fits_the_buffer(self) -> Self:
        """Refuse a budget in which one version's groups cannot be resident together: both sides would wait for ever."""
        need = self.groups_per_version * self.buffer.max_group_bytes
        if self.buffer.max_bytes < need:
            raise ValueError(
                f"buffer.max_bytes = {self.buffer.max_bytes} is less than the {self.groups_per_version} groups of one "
                f"version at buffer.max_group_bytes = {self.buffer.max_group_bytes} need ({need} bytes): the trainer "
                "would wait for groups that may not be started. Raise buffer.max_bytes or lower buffer.max_group_bytes."
            )
        return self

    @model_validator(mode="after")
    def a_pass_has_groups_for_its_optimizer_steps(self) -> Self:
        """Refuse more optimizer steps than groups: some would be left out, and the learning rate's course be wrong."""
        if self.actor.ppo_mini_batches > self.schedule.groups_per_step:
            raise ValueError(
                f"actor.ppo_mini_batches = {self.actor.ppo_mini_batches} is more than schedule.groups_per_step = "
                f"{self.schedule.groups_per_step}: a pass is split by whole groups, so some of its optimizer steps "
                "would have none. Lower the first or raise the second."
            )
        return self

    @model_validator(mode="after")
    def workers_have_servers(self) -> Self:
        """Refuse workers without servers: every episode would wait for ever."""
        if self.rollout.workers and self.inference.servers == 0 and not self.inference.urls:
            raise ValueError(
                "inference.servers = 0 and inference.urls is empty: nothing would generate. "
                "Set inference.servers to at least 1, or list the servers to adopt in inference.urls; or set "
                "rollout.workers = 0 on a machine that only looks after servers that `asyncrl fleet add` names."
            )
        return self

    @model_validator(mode="after")
    def teachers_can_be_told_apart(self) -> Self:
        """Refuse two teachers of one name, and a temperature at which no server scores."""
        names = [teacher.name for teacher in self.teachers]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(
                f"teachers has two entries named {twice!r}: their scores would be written to one column. Rename one."
            )
        if self.teachers and self.rollout.temperature != 1:
            raise ValueError(
                f"rollout.temperature = {self.rollout.temperature} with teachers: servers score given tokens at "
                "temperature 1 only, so the policy would be compared with another distribution. Set it to 1."
            )
        return self

    @model_validator(mode="after")
    def an_adapter_can_be_held(self) -> Self:
        """Refuse an adapter that travels alone to servers that cannot add it."""
        if self.lora.rank > 0 and self.lora.sync == "adapter" and self.inference.engine != "local":
            raise ValueError(
                f"lora.sync = adapter with inference.engine = {self.inference.engine}: only the local engine was tried "
                "with adapters that travel alone. Set lora.sync = merged, which every engine can hold."
            )
        return self

    @model_validator(mode="after")
    def vllm_is_asked_for_what_it_has(self) -> Self:
        """Refuse what was not tried with vLLM, or means something else there."""
        if self.inference.engine != "vllm":
            return self
        problems = {
            "rollout.top_p or rollout.top_k": self.rollout.top_p < 1 or self.rollout.top_k > 0,
            "the mode, which lends the trainer's devices to servers": self.plan.shares_gpus
            or self.plan.lend_trainer_gpus,
            "teachers": bool(self.teachers),
        }
        if wrong := [name for name, is_so in problems.items() if is_so]:
            raise ValueError(
                f"inference.engine = vllm does not go with {', and with '.join(wrong)}: docs/vllm.md says why. Change "
                "that, or use inference.engine = sglang."
            )
        return self

    @model_validator(mode="after")
    def hosts_can_be_placed(self) -> Self:
        """Refuse servers that are somewhere, where a cluster chooses the machines."""
        if self.cluster.backend != "local" and self.inference.urls:
            raise ValueError(
                f"inference.urls with cluster.backend = {self.cluster.backend}: the host of an adopted server has to "
                "run on the server's own machine, which the cluster does not know. Run `asyncrl serve-rollout` with "
                "cluster.backend=local there."
            )
        return self

    @model_validator(mode="after")
    def the_policy_is_trained(self) -> Self:
        """Refuse a run in which the critic is trained to the end and the policy never."""
        if self.critic.steps_before_policy >= self.trainer.steps:
            raise ValueError(
                f"critic.steps_before_policy = {self.critic.steps_before_policy} is not less than trainer.steps = "
                f"{self.trainer.steps}: the policy would end as it began. Lower the first or raise the second."
            )
        return self

    @model_validator(mode="after")
    def requests_fit_the_servers(self) -> Self:
        """Refuse lengths that every server would reject, one request after the other."""
        need = self.data.max_prompt_tokens + self.rollout.max_new_tokens
        if need > self.inference.context_length:
            raise ValueError(
                f"data.max_prompt_tokens = {self.data.max_prompt_tokens} plus rollout.max_new_tokens = "
                f"{self.rollout.max_new_tokens} is {need} tokens, more than inference.context_length = "
                f"{self.inference.context_length}. Raise the last or lower one of the others."
            )
        return self
