"""Which checkpoints stay: the newest, those at a multiple of a step, the best, and those that somebody needs."""

import logging
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Protocol

from asyncrl.trainer import checkpoint_files as files
from asyncrl.trainer.checkpoint_files import CheckpointName

log = logging.getLogger(__name__)


class Retention(Protocol):
    """The part of CheckpointConfig that says which checkpoints stay."""

    @property
    def keep_last(self) -> int: ...
    @property
    def keep_every(self) -> int | None: ...
    @property
    def keep_best(self) -> int: ...


class Scores:
    """Held-out scores on their way to the checkpoints that they are of. Thread-safe: one is noted by the loop, while a
    checkpoint is completed beside it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._awaited: set[CheckpointName] = set()
        self._known: dict[CheckpointName, float] = {}

    def expect(self, name: CheckpointName) -> None:
        """A checkpoint is going to be scored: it stays until then."""
        with self._lock:
            self._awaited.add(name)

    def note(self, name: CheckpointName, score: float | None) -> None:
        """The score of a checkpoint, written or not yet; None: it gets none."""
        with self._lock:
            self._awaited.discard(name)
            if score is not None:
                self._known[name] = score

    def settle(self, directory: Path) -> set[CheckpointName]:
        """Write what is known beside the checkpoints that are there; returns those that still wait for a score."""
        with self._lock:
            for name in [name for name in self._known if (directory / str(name)).is_dir()]:
                files.write_score(directory / str(name), self._known.pop(name))
            return set(self._awaited)


def expired(
    complete: Sequence[CheckpointName],
    retention: Retention,
    in_use: Iterable[CheckpointName] = (),
    scores: Mapping[CheckpointName, float] | None = None,
) -> list[CheckpointName]:
    """Which complete checkpoints may be deleted.

    Args:
        complete: those that are sound; broken ones count for nothing and are not ours to judge.
        in_use: others that stay, whatever their age.
        scores: held-out score of those that have one; of equal ones the newer is the better.
    """
    ordered, scored = sorted(complete), dict(scores or {})
    best = sorted((name for name in ordered if name in scored), key=lambda name: (scored[name], name))
    kept = {*ordered[-retention.keep_last :], *in_use, *(best[-retention.keep_best :] if retention.keep_best else ())}
    if retention.keep_every is not None:
        every = retention.keep_every
        kept.update(name for name in ordered if name.step % every == 0)
    return [name for name in ordered if name not in kept]


def delete_expired(
    directory: Path, retention: Retention, needed: Iterable[Path], awaited: Iterable[CheckpointName]
) -> None:
    """Delete what `expired` says of the sound checkpoints in `directory`.

    Args:
        needed: directories that stay, whatever their age.
        awaited: names that stay, since their score is not known yet.
    """
    sound = [(name, path) for name, path in files.listed(directory) if not files.problem(path, hashes=False)]
    resolved = {path.resolve() for path in needed}
    in_use = [*awaited, *(name for name, path in sound if path.resolve() in resolved)]
    scores = {name: score for name, path in sound if (score := files.read_score(path)) is not None}
    gone = set(expired([name for name, _ in sound], retention, in_use, scores))
    for name, path in sound:
        if name in gone:
            # Renamed first: a deletion that is cut short must not leave half a checkpoint under its name.
            doomed = path.rename(path.with_name(f"{files.TEMPORARY}old-{path.name}"))
            shutil.rmtree(doomed, ignore_errors=True)
