"""Section of the teachers: models that score what the policy sampled, for distillation."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from asyncrl.config.section import Section


class TeacherConfig(Section):
    """One teacher. It has the policy's tokenizer; what it says of each sampled token travels with the trajectory."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    """Name in columns (teacher/<name>/logprobs), metrics and messages."""

    path: Path | None = None
    """Model directory that serve-rollout serves as it is, on a server of its own. None: see urls."""

    urls: tuple[str, ...] = ()
    """Servers with SGLang's /generate that somebody else runs; requests take turns among them."""

    data_sources: tuple[str, ...] = ()
    """Data sources whose answers it scores. Empty: all."""

    top_k: int = Field(0, ge=0, le=1024)
    """Likeliest tokens kept beside each sampled one, with their logprobs: 8 bytes each, for every token. 0: none."""

    timeout_s: float = Field(60.0, gt=0)
    """Seconds one request to it may take."""

    max_attempts: int = Field(4, ge=1)
    """Times an answer is sent to it before the answer counts as not scored: masked and counted, never scored 0."""

    in_flight: int = Field(2, ge=1)
    """Requests that one worker has with it at once; answers that wait meanwhile go together in the next one."""

    @model_validator(mode="after")
    def one_place(self) -> Self:
        """Refuse a teacher that is nowhere, or in two places."""
        if (self.path is None) == (not self.urls):
            raise ValueError(
                f"teacher {self.name!r} needs either path (a model that serve-rollout serves) or urls (servers that "
                "somebody else runs), and not both."
            )
        return self
