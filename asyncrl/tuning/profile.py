"""What the simulator knows of a run: how it was set, how long its answers are, how fast its parts are."""

from typing import Annotated, Literal

from pydantic import Field

from asyncrl.config.section import Section

Seconds = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]


class Setting(Section):
    """What can be chosen: one row of the table that `asyncrl tune` prints."""

    limit: int = Field(2, ge=0)
    """staleness.limit: the largest lag, in versions, that is trained on."""
    policy: Literal["wait", "drop"] = "wait"
    """staleness.policy."""
    steps_per_version: int = Field(1, ge=1)
    """schedule.steps_per_version."""
    servers: int = Field(1, ge=1)
    """Servers that generate."""
    ranks: int = Field(1, ge=1)
    """Ranks that train: trainer.parallel.fsdp."""
    slots: int = Field(64, ge=1)
    """Episodes played at once, over all workers: rollout.slots x rollout.workers."""


class Workload(Section):
    """What stays as it is, from the configuration."""

    groups_per_step: int = Field(ge=1)
    """schedule.groups_per_step."""
    group_size: int = Field(ge=1)
    """rollout.n."""
    on_stale: Literal["resubmit", "discard", "mask"] = "resubmit"
    """staleness.on_stale."""
    max_stale: int = Field(8, ge=0)
    """staleness.max_stale."""
    order: Literal["oldest", "ordinal"] = "oldest"
    """staleness.order."""
    wait_deadline_s: Positive = 600.0
    """staleness.wait_deadline_s."""
    checkpoint_every: int = Field(10, ge=1)
    """trainer.checkpoint.every_steps."""
    devices_per_server: int = Field(1, ge=1)
    """inference.tp: what a server costs where devices are shared out."""
    devices_per_rank: int = Field(1, ge=1)
    """trainer.parallel: replicate x cp x tp, what one more of fsdp costs there. They stay as they are."""


class Answers(Section):
    """What an episode consists of."""

    lengths: dict[int, Positive]
    """Sampled tokens of an answer -> how many were as long."""
    in_group_share: float = Field(1.0, ge=0, le=1)
    """Share of the variance of lengths that is within groups. 0: all answers to a prompt are equally long."""
    turns: float = Field(1.0, ge=1)
    """Turns of an episode."""
    prompt_tokens: float = Field(0.0, ge=0)
    """Tokens of a prompt; they count in tokens per second and in the trainer's work."""
    environment_s: dict[Seconds, Positive] = Field(default_factory=dict)
    """Seconds that the environment takes for a turn, tools and reward included -> how often. Empty: none."""


class Speeds(Section):
    """How fast the parts of the two clusters are."""

    token_s: dict[Positive, Positive]
    """Requests that a server has at once -> seconds from one token of a request to the next. Between two it is
    linear, below the first it follows the line through all, above the last it grows in proportion: they queue."""
    step_s: Seconds
    """Seconds of a training step that more ranks do not shorten."""
    trained_token_s: Seconds
    """Seconds of one rank for one token of a batch, prompt included."""
    blocked_s: Seconds = 0.0
    """Seconds that the loop stands still for each version: the copy of its weights."""
    publish_s: Seconds = 0.0
    """Seconds from the end of a step to the moment when its version is there for servers."""
    stage_s: Seconds = 0.0
    """Seconds from that moment until a server can activate it; it generates meanwhile."""
    pause_s: Seconds = 0.0
    """Seconds that a server stands still for it."""
    notice_s: Seconds = 0.0
    """Seconds from then until requests are sent to it again: its word has to reach the workers."""
    checkpoint_s: Seconds = 0.0
    """Seconds of a checkpoint."""


class Profile(Section):
    """Everything that a simulation needs. `asyncrl tune RUN_DIR --save FILE` writes one as YAML, for editing."""

    setting: Setting = Setting()
    """How the run was set; the table varies it."""
    workload: Workload
    """What stays as it is."""
    answers: Answers
    """What an episode consists of."""
    speeds: Speeds
    """How fast the parts are."""
    ess: dict[int, float] = Field(default_factory=dict)
    """Lag -> effective sample size of the run's importance weights at it, 0 to 1. It is shown beside the choice, not
    used: what lag costs in learning is nothing that a simulation of seconds knows."""
