"""Sections of the rollout cluster: rollout, inference."""

from ipaddress import ip_network
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from asyncrl.config.environments import HarborConfig, VerifiersConfig
from asyncrl.config.interaction import InteractionConfig
from asyncrl.config.reward import RewardConfig
from asyncrl.config.section import Section
from asyncrl.config.tools import ToolsConfig


class PartialsConfig(Section):
    """What a worker keeps of groups that are not finished. The prompt's next owner goes on from the sampled tokens,
    unless they are past staleness.limit by then; tokens before and after may have different versions."""

    interval_s: float | None = Field(60.0, gt=0)
    """Seconds between two looks at a group in flight: what was sampled since the last one is parked in the buffer, so
    that a worker that is killed loses no more. Kept are finished episodes, whole turns and answers that were cut; an
    answer that is being sampled is not yet there (see chunk_tokens). null: never."""

    on_stop: bool = True
    """Park what is not finished when the worker is stopped. Servers are asked for the answers in flight as far as they
    are. false, with interval_s null: an unfinished group starts again from its prompt, always."""

    chunk_tokens: int | None = Field(None, ge=1)
    """Longest answer of one request, in tokens; longer turns are asked for in pieces, which bounds what is lost with a
    worker or a server. Each piece waits in the server's queue again and needs its prefix cache. null: whole turns."""


class RolloutConfig(Section):
    """How a prompt becomes a group of trajectories."""

    n: int = Field(8, ge=1)
    """Trajectories sampled for each prompt: the size of a group (G). A group is trained on as a whole."""

    temperature: float = Field(1.0, gt=0)
    """Sampling temperature, > 0. The trainer computes its logprobs at the same temperature."""

    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling, 1 = off. Below 1 the recorded logprobs are those of the full distribution, as SGLang's are, and
    no importance weight corrects for the tokens that cannot be drawn; `asyncrl train` says so."""

    top_k: int = Field(-1, ge=-1)
    """Sample among the k likeliest tokens, -1 = all. Biased as top_p is."""

    max_new_tokens: int = Field(1024, ge=1)
    """Longest answer of one turn, in tokens."""

    max_turns: int = Field(1, ge=1)
    """Turns of the model in one episode, in environments that answer back."""

    environment: str = "single_turn"
    """Environment that episodes are played in: a row of asyncrl.envs.ENVIRONMENTS, or your own as path/to/file.py:Class
    or package.module:Class (docs/environments.md)."""

    workers: int = Field(1, ge=0)
    """Worker processes; each plays the episodes of the prompts it reserves. 0: this machine has servers alone, and the
    workers of others use them."""

    slots: int = Field(64, ge=1)
    """Episodes that one worker plays at once, refilled one by one: a straggler holds one slot, not its group's."""

    max_episode_attempts: int = Field(3, ge=1)
    """Times an episode is tried on another server before its group is given back as failed."""

    reward: RewardConfig = RewardConfig()
    """Rewards and the processes that compute them."""

    partials: PartialsConfig = PartialsConfig()
    """Unfinished groups: when they are parked."""

    tools: ToolsConfig = ToolsConfig()
    """Tools that the model may call."""

    interaction: InteractionConfig = InteractionConfig()
    """Programs that answer as the user."""

    harbor: HarborConfig = HarborConfig()
    """Of `environment: harbor`: tasks in directories, each with its own place to work and its own tests."""

    verifiers: VerifiersConfig = VerifiersConfig()
    """Of `environment: verifiers`: an environment of the library verifiers."""

    @field_validator("top_k")
    @classmethod
    def some_token_can_be_drawn(cls, top_k: int) -> int:
        """Refuse 0, which other systems take for all tokens and servers refuse with every request."""
        if top_k == 0:
            raise ValueError("rollout.top_k = 0 leaves no token to draw; -1 is off")
        return top_k


class PreemptionConfig(Section):
    """How the machine's owner announces that it will be taken away: by a file, or by what a command answers. SIGUSR1
    does the same, and SIGTERM where there is more time."""

    file: Path | None = None
    """The notice is that this file exists."""

    command: tuple[str, ...] = ()
    """Program and arguments, run without a shell; the notice is that it exits with 0. For example
    [curl, -sf, http://169.254.169.254/latest/meta-data/spot/instance-action]."""

    every_s: float = Field(5.0, gt=0)
    """Seconds between two looks."""

    command_timeout_s: float = Field(5.0, gt=0)
    """Seconds that one run of the command may take; one that takes longer is ended, and gave no notice."""


class InferenceConfig(Section):
    """The servers that generate: what runs them, how many, and their limits."""

    engine: Literal["local", "sglang", "vllm"] = "local"
    """`local`: the CPU engine that comes with asyncrl. `sglang`, `vllm`: that server in the environment of
    inference.python."""

    servers: int = Field(1, ge=0)
    """Servers that serve-rollout starts on this machine; 0 with inference.urls set starts none."""

    urls: tuple[str, ...] = ()
    """Servers that somebody else runs, adopted by address; each gets a host beside it for its weights. `asyncrl fleet
    add` adopts one while the run goes on."""

    python: Path | None = None
    """Python of the server's virtual environment (scripts/setup --sglang or --vllm makes one). None: this one."""

    host: str = "127.0.0.1"
    """Address that started servers listen on; weight routes can replace a model, so keep it private. Or a network,
    like 10.0.0.0/16, in which each machine that starts servers has an address."""

    base_port: int = Field(0, ge=0, le=65535)
    """First port of the started servers; 0 lets the system choose free ones."""

    max_running_requests: int = Field(64, ge=1)
    """Requests that one server decodes at once; more wait in its queue."""

    context_length: int = Field(2048, ge=16)
    """Most tokens of one request, prompt and answer together."""

    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Arithmetic of the local engine; its weights are kept in model.wire_dtype whatever this says."""

    tp: int = Field(1, ge=1)
    """Tensor-parallel ranks of one server of SGLang or vLLM."""

    record_experts: bool = False
    """Have SGLang tell which experts of a model with experts each token was sent to, for actor.replay_experts; with a
    GPU only. Servers of inference.urls need --enable-return-routed-experts. A token takes layers x experts a token
    bytes in the buffer, twice as many with more than 128 experts in a layer."""

    extra_args: tuple[str, ...] = ()
    """Further arguments for the server's command line, as they are."""

    start_timeout_s: float = Field(600.0, gt=0)
    """Seconds a server may take from its start to its first answer."""

    request_timeout_s: float = Field(600.0, gt=0)
    """Seconds one generation request may take before its episode goes to another server."""

    max_restarts: int = Field(10, ge=0)
    """Times a server that died is started again before its host gives it up. serve-rollout goes on without it as long
    as it has another."""

    restarts_forgiven_s: float = Field(600.0, ge=0)
    """Seconds that a server must have served for its earlier deaths to count no more towards max_restarts."""

    preemption: PreemptionConfig = PreemptionConfig()
    """How serve-rollout learns that its machine is about to be taken away."""

    @field_validator("host")
    @classmethod
    def host_is_a_network_if_it_looks_like_one(cls, host: str) -> str:
        """Refuse what has a / and is no network."""
        if "/" in host:
            try:
                ip_network(host)
            except ValueError as error:
                raise ValueError(f"inference.host = {host!r} is no network: {error}.") from None
        return host

    @model_validator(mode="after")
    def the_engine_has_experts(self) -> Self:
        """Refuse to ask the local engine, whose models have none."""
        if self.record_experts and self.engine != "sglang":
            reason = "serves no models with experts" if self.engine == "local" else "is not asked for them"
            raise ValueError(
                f"inference.record_experts = true, but inference.engine = {self.engine} {reason}. Set it to false, or "
                "inference.engine to sglang."
            )
        return self

    @model_validator(mode="after")
    def the_engine_can_be_adopted(self) -> Self:
        """Refuse servers of somebody else's where it cannot be asked what they were started with."""
        if self.urls and self.engine == "vllm":
            raise ValueError(
                f"inference.urls = {list(self.urls)} with inference.engine = vllm: such a server does not say whether "
                "it was started with our weight loader. Let asyncrl start it: inference.servers=1 inference.urls=[]."
            )
        return self
