"""Checkpoints of a soak's trainers: JSON files, each whole or not there; together they are the tree of lineages."""

import json
import os
import re
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from buffer import Ledger

_NAME = re.compile(r"(\d+)\.(\d+)-step(\d+)\.json")


@dataclass(frozen=True, slots=True, order=True)
class Name:
    """The newest is the largest."""

    branch: int
    number: int
    step: int

    def __str__(self) -> str:
        return f"{self.branch}.{self.number}-step{self.step}.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """trained: (step, ordinals) since `parent`, the checkpoint that this lineage had before."""

    name: Name
    parent: Name | None
    trained: tuple[tuple[int, tuple[int, ...]], ...]
    ledger: Ledger


def write(directory: Path, checkpoint: Checkpoint) -> None:
    """Durable under its name, or not there. One of this name that is there already stays."""
    target = directory / str(checkpoint.name)
    draft = directory / f"draft-{secrets.token_hex(8)}"
    parent = checkpoint.parent
    state = {
        "parent": None if parent is None else [parent.branch, parent.number, parent.step],
        "trained": checkpoint.trained,
        "ledger": checkpoint.ledger.to_json(),
    }
    with draft.open("w") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    with suppress(FileExistsError):
        os.link(draft, target)
    draft.unlink()


def read(directory: Path, name: Name) -> Checkpoint:
    """The checkpoint of this name."""
    state = json.loads((directory / str(name)).read_text())
    return Checkpoint(
        name=name,
        parent=None if state["parent"] is None else Name(*state["parent"]),
        trained=tuple((step, tuple(ordinals)) for step, ordinals in state["trained"]),
        ledger=Ledger.from_json(state["ledger"]),
    )


def newest(directory: Path) -> Checkpoint | None:
    """The checkpoint that a trainer resumes from."""
    found = [Name(*map(int, m.groups())) for path in directory.iterdir() if (m := _NAME.fullmatch(path.name))]
    return read(directory, max(found)) if found else None


def lineage(directory: Path, tip: Checkpoint) -> list[Checkpoint]:
    """The checkpoints from the root to `tip`."""
    chain = [tip]
    while (parent := chain[-1].parent) is not None:
        chain.append(read(directory, parent))
    return chain[::-1]
