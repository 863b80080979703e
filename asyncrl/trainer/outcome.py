"""How a trainer's loop ends."""

from dataclasses import dataclass, field
from typing import Literal

from asyncrl.errors import AsyncrlError
from asyncrl.trainer.limits import Reached

EndedBy = Reached | Literal["stop"]


@dataclass(frozen=True)
class Outcome:
    """How the loop ended.

    Attributes:
        reason: finished, or stopped in good order: a resume goes on from here.
        ended_by: which bound was reached, or that a stop was asked for.
        version: packed; the last one that was trained.
        facts: numbers for the summary; on rank 0.
    """

    reason: Literal["finished", "stopped"]
    ended_by: EndedBy
    step: int
    version: int
    facts: dict[str, float | str] = field(default_factory=dict)


class LedgerBehind(AsyncrlError):
    """Redis lost its latest writes; a new start from the newest checkpoint opens a new branch and goes on."""
