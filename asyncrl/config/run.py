"""Sections of the run as a whole: run, schedule, metrics, cluster."""

from pathlib import Path
from typing import Literal

from pydantic import Field

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


class MetricsConfig(Section):
    """Where metrics go, beside metrics.jsonl and the console, which are always on."""

    sinks: tuple[Literal["tensorboard", "wandb"], ...] = ("tensorboard",)
    """Further places for metrics. One that fails is reported and left; it stops no training."""
    wandb_project: str = "asyncrl"
    """Project in Weights & Biases. WANDB_MODE=offline writes to the run directory only."""


class ClusterConfig(Section):
    """How processes are started, and what each may use."""

    backend: Literal["local"] = "local"
    """`local`: plain processes on this machine."""
    threads: int = Field(1, ge=1)
    """CPU threads of torch in each process. Two processes with spinning threads on one core cost ten times the time."""
    stop_timeout_s: float = Field(60.0, gt=0)
    """Seconds a process may take to stop when asked, before it is killed."""
