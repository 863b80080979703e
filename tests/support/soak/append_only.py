"""The end of an append-only file: what a machine that loses power takes with it (everysec: the last second)."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Mark:
    """How long the file was."""

    path: Path
    num_bytes: int


def mark(directory: Path) -> Mark:
    """The end as it is now: what is durable, if the power goes before the next fsync."""
    path = _newest(directory)
    return Mark(path, path.stat().st_size)


def cut(directory: Path, durable: Mark) -> int:
    """Lose what a killed server wrote after `durable`; how many bytes.

    0 if it has begun another file since: with that it had made the old one durable.
    """
    path = _newest(directory)
    if path != durable.path:
        return 0
    lost = path.stat().st_size - durable.num_bytes
    with path.open("r+b") as file:
        file.truncate(durable.num_bytes)
    return lost


def _newest(directory: Path) -> Path:
    files = directory / "appendonlydir"
    (manifest,) = files.glob("*.manifest")
    names = [line.split()[1] for line in manifest.read_text().splitlines() if line.endswith("type i")]
    return files / names[-1]
