"""A checkpoint as a directory: its name, its manifest of sizes and hashes, its score, and whether it is sound."""

import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3

from asyncrl.errors import CheckpointError

log = logging.getLogger(__name__)

FORMAT = 1
STATE = "state.json"
MANIFEST = "manifest.json"
SCORE = "score.json"
TEMPORARY = ".tmp-"
"""Begins the name of what is not complete, or on its way out: a sibling of the checkpoints, since a rename does not
cross file systems."""
_NAME = re.compile(r"([0-9]+)\.([0-9]+)-step([0-9]+)", re.ASCII)
_REMEDY = "Resume with the version of asyncrl that wrote it."


@dataclass(frozen=True, order=True)
class CheckpointName:
    """Branch and number of the version, and the step; the newest is the largest, compared as numbers."""

    branch: int
    number: int
    step: int

    def __str__(self) -> str:
        return f"{self.branch}.{self.number}-step{self.step}"

    @classmethod
    def parse(cls, text: str) -> "CheckpointName | None":
        """The name of a directory, or None if it is not the name of a checkpoint."""
        match = _NAME.fullmatch(text)
        return cls(*map(int, match.groups())) if match else None


def listed(directory: Path) -> list[tuple[CheckpointName, Path]]:
    """Every directory that is named as a checkpoint, oldest first; whether it is sound is another question."""
    if not directory.is_dir():
        return []
    named = ((CheckpointName.parse(path.name), path) for path in directory.iterdir() if path.is_dir())
    return sorted((name, path) for name, path in named if name is not None)


def hash_file(path: Path) -> str:
    """blake3 of a file, by all cores."""
    return blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()


def write_state(directory: Path, state: Mapping[str, Any], files: Mapping[str, tuple[int, str]]) -> None:
    """Write the state, then the manifest that makes the directory complete.

    Args:
        state: plain data.
        files: size and blake3 of the files that are there already, by name.
    """
    path = directory / STATE
    _write_durably(path, json.dumps({"format": FORMAT, **state}, indent=1))
    entries = {**files, STATE: (path.stat().st_size, hash_file(path))}
    manifest = {name: {"bytes": size, "blake3": digest} for name, (size, digest) in sorted(entries.items())}
    _write_durably(directory / MANIFEST, json.dumps({"format": FORMAT, "files": manifest}, indent=1))
    sync_directory(directory)


def problem(directory: Path, *, hashes: bool) -> str:
    """What is wrong with a checkpoint, naming the file; empty if nothing is.

    Args:
        hashes: read every byte; otherwise only sizes are compared.
    Raises:
        CheckpointError: another version of asyncrl wrote it.
    """
    try:
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        written, files = manifest["format"], manifest["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{MANIFEST} cannot be read ({error})"
    _refuse_format(directory, written)
    for name, entry in files.items():
        path = directory / name
        try:
            size = path.stat().st_size
        except OSError:
            return f"{name} is missing"
        if size != entry["bytes"]:
            return f"{name} has {size} bytes, {entry['bytes']} were written"
        if hashes and hash_file(path) != entry["blake3"]:
            return f"{name} is not what was written: its hash differs"
    return "" if STATE in files else f"{STATE} is not in {MANIFEST}"


def read_state(directory: Path) -> dict[str, Any]:
    """The state of a sound checkpoint. Raises CheckpointError if another version of asyncrl wrote it."""
    state: dict[str, Any] = json.loads((directory / STATE).read_text(encoding="utf-8"))
    _refuse_format(directory, state.get("format"))
    return state


def size_of(directory: Path) -> tuple[int, int]:
    """Bytes of a sound checkpoint, and the number of ranks that wrote it."""
    files = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))["files"]
    return sum(entry["bytes"] for entry in files.values()), sum(name.startswith("rank-") for name in files)


def written_s(directory: Path) -> float:
    """When a checkpoint was completed, in seconds since the epoch; of a damaged one, when its directory changed."""
    manifest = directory / MANIFEST
    return (manifest if manifest.exists() else directory).stat().st_mtime


def write_score(directory: Path, score: float) -> None:
    """Note the held-out score of a checkpoint inside it. It is no part of what was saved, hence not in the manifest."""
    partial = directory / f"{SCORE}.partial"
    _write_durably(partial, json.dumps({"score": score}))
    partial.rename(directory / SCORE)


def read_score(directory: Path) -> float | None:
    """What write_score wrote; None without one, or, with a warning, if it cannot be read: a run goes on without it."""
    try:
        return float(json.loads((directory / SCORE).read_text(encoding="utf-8"))["score"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("the score of %s cannot be read (%s); it counts as not scored", directory, error)
        return None


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_durably(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())


def _refuse_format(directory: Path, written: object) -> None:
    if written != FORMAT:
        raise CheckpointError(f"{directory} has checkpoint format {written}, this version reads {FORMAT}. {_REMEDY}")
