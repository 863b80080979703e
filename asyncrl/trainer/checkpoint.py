"""Checkpoints: written beside their place and renamed once, so that a name always stands for a complete one.

copy (optional) -> each rank writes its file -> rank 0: state, manifest, rename -> what rests on it -> old ones go
"""

import logging
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgpack

from asyncrl.errors import CheckpointError
from asyncrl.trainer import checkpoint_files as files
from asyncrl.trainer.agreement import Decision, done_by_rank0
from asyncrl.trainer.checkpoint_files import TEMPORARY, CheckpointName
from asyncrl.trainer.critic import Critic
from asyncrl.trainer.critic_state import critic_pieces, restore_critic
from asyncrl.trainer.parallel import Channel
from asyncrl.trainer.policy import Policy
from asyncrl.trainer.policy_state import pieces, restore
from asyncrl.trainer.rank_files import Piece, RankFiles, rank_file, write
from asyncrl.trainer.retention import Retention, Scores, delete_expired
from asyncrl.trainer.state_copy import StateCopy

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint: where it is, its name, and its state (step, optimizer_steps, ledger, digests, config)."""

    path: Path
    name: CheckpointName
    state: Mapping[str, Any]


def no_path_in_use() -> Collection[Path]:
    """No record of any log names a checkpoint."""
    return ()


def nothing_rests_on_it() -> None:
    """Nobody waits for the checkpoint."""


class Checkpoints:
    """The checkpoints of one run, in one directory that every rank reaches."""

    def __init__(
        self, directory: Path, retention: Retention, in_use: Callable[[], Collection[Path]] = no_path_in_use
    ) -> None:
        """Look at `directory`, which need not exist.

        Args:
            in_use: directories that the log of versions names as anchors; they are not deleted.
        """
        self._directory, self._retention, self._in_use = directory, retention, in_use
        self._copy = StateCopy()
        self.scores = Scores()

    def copy(self, policy: Policy, critic: Critic | None = None) -> Sequence[Piece]:
        """Copy this rank's state, for a `save` beside training; it stays as it is until the next copy."""
        return self._copy.fill(_pieces(policy, critic))

    def save(
        self,
        name: CheckpointName,
        policy: Policy,
        state: Mapping[str, Any],
        ranks: Channel,
        *,
        critic: Critic | None = None,
        copied: Iterable[Piece] | None = None,
        then: Callable[[], None] = nothing_rests_on_it,
    ) -> Path:
        """Write a checkpoint; every rank calls it together, rank 0 with the state.

        A checkpoint of this name that is sound already is left as it is.
        Args:
            copied: of the last `copy`; None: what policy and critic hold, which must not change meanwhile.
            then: called on rank 0 once the checkpoint is there, before older ones are deleted.
        Raises:
            CheckpointError: on every rank, if one of them could not write. The temporary directory is removed and
                older checkpoints are as they were.
            RankZeroEnded: on the other ranks, if rank 0 raised, or `then` did.
        """
        target = self._directory / str(name)
        temporary = self._begin(target, ranks)
        reports: list[bytes] | None = []
        if temporary is not None:
            own = _pieces(policy, critic) if copied is None else copied
            reports = ranks.gather(msgpack.packb(_write_rank(temporary, own, ranks.rank)))

        def complete() -> Decision:
            failed = ""
            if temporary is not None:
                whole = {**state, **policy.weights.facts()}
                failed = self._finish(temporary, target, whole, [msgpack.unpackb(blob) for blob in reports or ()])
            if not failed:
                then()
                self._delete_expired()
            return {"failed": failed}

        if failed := done_by_rank0(ranks, complete)["failed"]:
            raise CheckpointError(failed)
        return target

    def score(self, name: CheckpointName, score: float | None) -> None:
        """Note the held-out score of a checkpoint, written or still to be; None: it gets none. On rank 0."""
        self.scores.note(name, score)
        if self._directory.is_dir():
            self._delete_expired()

    def newest(self) -> Saved | None:
        """The newest complete checkpoint, every byte verified; None if there is none at all.

        A damaged one is named in a warning and the next older one taken.
        Raises:
            CheckpointError: there are some, but all of them are damaged, or another version of asyncrl wrote them.
        """
        found = files.listed(self._directory)
        damaged = []
        for name, path in reversed(found):
            wrong = files.problem(path, hashes=True)
            if not wrong:
                return Saved(path, name, files.read_state(path))
            damaged.append(f"{path}: {wrong}")
            log.warning("checkpoint %s is damaged: %s. The next older one is used instead.", path, wrong)
        if damaged:
            raise CheckpointError(
                f"None of the {len(damaged)} checkpoints is sound. {'; '.join(damaged)}. Restore one of them from a "
                "copy, or move them away to start from the beginning."
            )
        return None

    def named(self, text: str) -> Saved:
        """One checkpoint by its name or its step (the newest branch's), every byte verified.

        Raises:
            CheckpointError: there is none of this name, or it is damaged.
        """
        found = files.listed(self._directory)
        chosen = [(name, path) for name, path in found if text in (str(name), str(name.step))]
        if not chosen:
            there = ", ".join(str(name) for name, _ in found) or "none"
            raise CheckpointError(f"{self._directory} holds no checkpoint {text!r}; there are: {there}.")
        return _sound(*chosen[-1])

    def best(self) -> Saved | None:
        """The sound checkpoint with the highest held-out score, the newest of equal ones; None if none has a score."""
        scored = [(files.read_score(path), name, path) for name, path in files.listed(self._directory)]
        for _, name, path in sorted([(s, n, p) for s, n, p in scored if s is not None], reverse=True):
            wrong = files.problem(path, hashes=True)
            if not wrong:
                return Saved(path, name, files.read_state(path))
            log.warning("checkpoint %s is damaged: %s. The next best one is used instead.", path, wrong)
        return None

    def saved_at(self, path: str, state: Mapping[str, Any]) -> Saved:
        """A checkpoint that rank 0 chose, as the other ranks see it."""
        name = CheckpointName.parse(Path(path).name)
        assert name is not None
        return Saved(Path(path), name, state)

    def load(self, saved: Saved, policy: Policy, *, critic: Critic | None = None) -> None:
        """Put a checkpoint's weights, optimizers and random states into policy and critic; every rank calls it.

        Raises:
            CheckpointError: it is of another model, or has no critic.
        """
        policy.weights.require_alike(saved.state)
        with RankFiles(saved.path) as stored:
            restore(policy, stored, int(saved.state["optimizer_steps"]))
            if critic is not None:
                restore_critic(critic, stored, saved.state)

    def describe(self, *, verify: bool) -> list[dict[str, str | float | None]]:
        """One row for each checkpoint, newest first: path, step, version, bytes, world (ranks that wrote it), age_s,
        score (None without one), state ("complete" or "damaged: ..."); bytes and world are None of a damaged one.

        Args:
            verify: read every byte; otherwise only sizes are compared.
        """
        rows: list[dict[str, str | float | None]] = []
        for name, path in reversed(files.listed(self._directory)):
            wrong = files.problem(path, hashes=verify)
            num_bytes, world = (None, None) if wrong else files.size_of(path)
            rows.append(
                {
                    "path": str(path),
                    "step": str(name.step),
                    "version": f"{name.branch}.{name.number}",
                    "bytes": num_bytes,
                    "world": world,
                    "age_s": round(time.time() - files.written_s(path), 1),
                    "score": files.read_score(path),
                    "state": f"damaged: {wrong}" if wrong else "complete",
                }
            )
        return rows

    def _begin(self, target: Path, ranks: Channel) -> Path | None:
        """The temporary directory for all ranks, or None if the checkpoint is there already."""
        choice = b""
        if ranks.rank == 0 and not self._is_sound(target):
            choice = f"{TEMPORARY}{target.name}-{secrets.token_hex(4)}".encode()
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
                for left in self._directory.glob(f"{TEMPORARY}*"):
                    shutil.rmtree(left)  # of a save that was killed
                (self._directory / choice.decode()).mkdir()
            except OSError as error:
                log.warning("%s", error)  # each rank's own write fails next, and that is reported
        choice = ranks.broadcast(choice if ranks.rank == 0 else None)
        return self._directory / choice.decode() if choice else None

    def _is_sound(self, target: Path) -> bool:
        return target.is_dir() and not files.problem(target, hashes=False)

    def _finish(self, temporary: Path, target: Path, state: Mapping[str, Any], reports: list[dict[str, Any]]) -> str:
        """Complete and rename what all ranks wrote; returns what went wrong, or nothing."""
        errors = [report["error"] for report in reports if "error" in report]
        try:
            if not errors:
                written = {report["name"]: (report["bytes"], report["blake3"]) for report in reports}
                files.write_state(temporary, state, written)
                if target.exists():  # damaged, as _begin found: it makes room for a sound one
                    target.rename(target.with_name(f"{TEMPORARY}damaged-{temporary.name.removeprefix(TEMPORARY)}"))
                temporary.rename(target)
                files.sync_directory(self._directory)
                return ""
        except OSError as error:
            errors.append(str(error))
        shutil.rmtree(temporary, ignore_errors=True)
        free = _free_bytes(self._directory)
        return (
            f"Checkpoint {target} was not written: {'; '.join(errors)} ({free} free). Older checkpoints are as they "
            "were. Free some space, lower trainer.checkpoint.keep_last, or set run.dir to a larger disk."
        )

    def _delete_expired(self) -> None:
        try:
            delete_expired(self._directory, self._retention, self._in_use(), self.scores.settle(self._directory))
        except OSError as error:
            log.warning("old checkpoints were not deleted: %s; the next checkpoint tries again", error)


def _pieces(policy: Policy, critic: Critic | None) -> Iterator[Piece]:
    yield from pieces(policy) if critic is None else chain(pieces(policy), critic_pieces(critic))


def _write_rank(temporary: Path, own: Iterable[Piece], rank: int) -> dict[str, Any]:
    path = rank_file(temporary, rank)
    try:
        num_bytes, digest = write(path, own)
    except Exception as error:  # whatever it is, the others wait for this report, and the loop judges it
        log.warning("rank %d could not write %s", rank, path, exc_info=not isinstance(error, OSError))
        return {"error": f"rank {rank} could not write {path}: {error}"}
    return {"name": path.name, "bytes": num_bytes, "blake3": digest}


def _sound(name: CheckpointName, path: Path) -> Saved:
    wrong = files.problem(path, hashes=True)
    if wrong:
        raise CheckpointError(f"Checkpoint {path} is damaged: {wrong}. Choose another one.")
    return Saved(path, name, files.read_state(path))


def _free_bytes(directory: Path) -> str:
    existing = next((path for path in (directory, *directory.parents) if path.exists()), directory)
    return f"{shutil.disk_usage(existing).free / 1e9:.1f} GB"
