"""Sections of the run as a whole: run, schedule, metrics, cluster."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from asyncrl.config.section import Section


class RunConfig(Section):
    """Identity of the run."""

    name: str = Field("asyncrl", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    """Name of the run: its keys in Redis and its directory. Two commands with one name and Redis are one run."""
    dir: Path | None = None
    """Where metrics, checkpoints, export and summary go. None: runs/<run.name>."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of prompt order, sampling and everything random in the trainer."""

    @property
    def directory(self) -> Path:
        """run.dir, or its default."""
        return self.dir if self.dir is not None else Path("runs") / self.name


class ScheduleConfig(Section):
    """How many groups a step takes, and overrides of the mode's row."""

    groups_per_step: int = Field(32, ge=1)
    """Groups in one training step; tokens trained per step are about this x rollout.n x answer length."""
    steps_per_version: int | None = Field(None, ge=1)
    """Training steps between two published versions. None: the mode's (1)."""
    shares_gpus: bool | None = None
    """Rollout and trainer take turns on the same devices. None: the mode's."""
    lend_trainer_gpus: bool | None = None
    """Where the trainer has devices of its own: `train` starts servers on them too, one for each inference.tp of its
    ranks, which serve while it waits for groups, if the wait is long enough to pay for the switch, and give their
    answers back as far as they are when it has a batch. Workers reach them at inference.host, which has to be an
    address of the trainer's machine or a network that it is in. Shared devices are always lent. None: the mode's
    (false)."""


class MetricsConfig(Section):
    """Where metrics go, beside metrics.jsonl and the console, which are always on."""

    sinks: tuple[Literal["tensorboard", "wandb"], ...] = ("tensorboard",)
    """Further places for metrics. One that fails is reported and left; it stops no training."""
    wandb_project: str = "asyncrl"
    """Project in Weights & Biases. WANDB_MODE=offline writes to the run directory only."""


class ClusterConfig(Section):
    """How processes are started, and what each may use."""

    backend: Literal["local", "ray"] = "local"
    """`local`: plain processes on this machine. `ray`: processes on the machines of a Ray cluster, which needs
    asyncrl[ray] on each, and a run.dir that they share."""
    ray_address: str | None = Field(None, min_length=1)
    """host:port of the Ray cluster's head; the command runs on a machine of the cluster. None: RAY_ADDRESS, or without
    it a Ray cluster of this machine alone, for as long as the command runs."""
    placement_timeout_s: float = Field(600.0, gt=0)
    """Seconds to wait until a cluster has room for the processes, at the start and after a machine was lost. Then the
    command leaves with exit code 75."""
    silence_timeout_s: float = Field(120.0, gt=0)
    """Seconds without an answer from a machine after which its processes count as dead. A machine that Ray itself
    finds dead counts so at once."""
    hang_timeout_s: float = Field(300.0, gt=0)
    """Seconds after which a process that gives no sign of life (it is stopped or frozen, or a call lets none of its
    threads run) is killed, and counts as one that died. A trainer's rank that is still there so long after another one
    has ended well, or after everything is saved, hangs too."""
    pass_env: tuple[str, ...] = (
        "ASYNCRL_SERVER_KEY",
        "HF_HOME",
        "HF_HUB_OFFLINE",
        "GLOO_*",
        "NCCL_*",
        "WANDB_*",
    )
    """Variables of the command's environment that processes on other machines are given, by name or pattern. All else
    they have from their own machine. Redis's address is always given."""
    threads: int = Field(1, ge=1)
    """CPU threads of torch in each process. Two processes with spinning threads on one core cost ten times the time."""
    stop_timeout_s: float = Field(60.0, gt=0)
    """Seconds a process may take to stop when asked, before it is killed."""

    @model_validator(mode="after")
    def an_address_has_a_use(self) -> Self:
        """Refuse the address of a cluster that would not be used."""
        if self.ray_address is not None and self.backend == "local":
            raise ValueError(
                f"cluster.ray_address = {self.ray_address} has no effect with cluster.backend = local: everything "
                "would run on this machine. Set cluster.backend to ray, or remove the address."
            )
        return self
