"""How the trainer's ranks left: `finished` or `stopped`, from rank 0 to its supervisor through a file."""

import json
from pathlib import Path

FILE = "outcome.json"


def write_outcome(directory: Path, reason: str, *, step: int, version: str) -> None:
    """Say how this trainer ended; replaced in one step, so that no half file is read."""
    partial = directory / f"{FILE}.partial"
    partial.write_text(json.dumps({"reason": reason, "step": step, "version": version}) + "\n")
    partial.rename(directory / FILE)


def clear_outcome(directory: Path) -> None:
    """Forget an earlier trainer's end."""
    (directory / FILE).unlink(missing_ok=True)


def read_outcome(directory: Path) -> str:
    """`finished` or `stopped`; `unknown` when no rank said so."""
    path = directory / FILE
    return str(json.loads(path.read_text())["reason"]) if path.exists() else "unknown"
