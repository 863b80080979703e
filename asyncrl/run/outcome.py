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


def undone(ended: Ended, steps: int) -> str:
    """What is missing of a run that nobody stopped, in words; empty if nothing is.

    Args:
        steps: that were asked for; a run that ended by hours or a score may have done fewer.
    """
    ran = ended.step or 0
    if ended.reason == "finished" and (ended.ended_by != "steps" or ran >= steps):
        return ""
    how = f" ({ended.why})" if ended.why else ""
    return (
        f"The run is not done, and nobody asked this command to stop it: the trainer's ranks ended without an error, "
        f"{ended.reason}{how}, and ran {ran} of {steps} steps. Was a rank sent a signal by itself? Go on with --resume."
    )
