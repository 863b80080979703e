"""Section of the rewards: what scores answers, and how long one score may take."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from asyncrl.config.section import Section


class RewardServerConfig(Section):
    """A reward model that somebody else runs behind a URL."""

    url: str = Field(pattern=r"^https?://[^\s/]+")
    """Where answers are posted to, one at a time, as JSON; it replies {"score": number, ...}."""

    data_sources: tuple[str, ...] = ()
    """Data sources whose answers it scores. Empty: all."""

    max_attempts: int = Field(4, ge=1)
    """Times an answer is sent, when the server is busy, fails or takes longer than rollout.reward.timeout_s."""

    in_flight: int = Field(32, ge=1)
    """Requests that one worker has with it at once; further answers wait."""


class RewardConfig(Section):
    """Where rewards come from, and how long one may take."""

    servers: tuple[RewardServerConfig, ...] = ()
    """Reward models over HTTP; the first that takes a data source scores it, before reward.file and the table."""

    file: Path | None = None
    """Python file with your own reward function, called with verl's arguments. None: the table by data_source."""

    function: str = "compute_score"
    """Name of the function in reward.file; it may be async."""

    workers: int = Field(2, ge=1)
    """Processes that score answers; a function that hangs or crashes costs one of them, never the run."""

    timeout_s: float = Field(30.0, gt=0)
    """Seconds one call may take. Later it is killed and the trajectory is masked and counted, not scored 0."""

    @model_validator(mode="after")
    def every_reward_can_be_called(self) -> Self:
        """Refuse a reward behind a server that takes every answer: it would silently never be called."""
        places = [number for number, server in enumerate(self.servers) if not server.data_sources]
        hidden = "rollout.reward.file" if self.file is not None else None
        if places and places[0] + 1 < len(self.servers):
            hidden = f"rollout.reward.servers[{places[0] + 1}]"
        if places and hidden is not None:
            raise ValueError(
                f"rollout.reward.servers[{places[0]}] takes the answers of every data source, so {hidden} would never "
                "be called. List the data_sources of that server, or remove the other."
            )
        return self
