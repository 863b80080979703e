"""How the trainer's ranks left, from rank 0 to its supervisor through a file."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

FILE = "outcome.json"

Reason = Literal["finished", "stopped", "left", "unknown"]


@dataclass(frozen=True)
class Ended:
    """How a trainer ended.

    Attributes:
        reason: finished; stopped in good order, with everything trained in a checkpoint; left because the time for a
            stop was short, without what was trained since the newest one; unknown when no rank said so (killed).
        ended_by: what ended it: steps, max_hours, target_score, or stop.
        why: of a trainer that left, what it had no time for.
    """

    reason: Reason = "unknown"
    ended_by: str = ""
    step: int | None = None
    version: str = ""
    why: str = ""


def write_outcome(directory: Path, ended: Ended) -> None:
    """Say how this trainer ended; replaced in one step, so that no half file is read."""
    partial = directory / f"{FILE}.partial"
    partial.write_text(json.dumps(asdict(ended)) + "\n")
    partial.rename(directory / FILE)


def clear_outcome(directory: Path) -> None:
    """Forget an earlier trainer's end."""
    (directory / FILE).unlink(missing_ok=True)


def read_outcome(directory: Path) -> Ended:
    """What rank 0 wrote; `unknown` when no rank said anything."""
    path = directory / FILE
    return Ended(**json.loads(path.read_text())) if path.exists() else Ended()
