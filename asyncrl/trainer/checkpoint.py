"""Checkpoints: written beside their place and renamed once, so that a name always stands for a complete one."""

import logging
import secrets
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import msgpack

from asyncrl.errors import CheckpointError
from asyncrl.trainer import checkpoint_files as files
from asyncrl.trainer.checkpoint_files import CheckpointName
from asyncrl.trainer.critic import Critic
from asyncrl.trainer.critic_state import critic_pieces, restore_critic
from asyncrl.trainer.parallel import Ranks
from asyncrl.trainer.policy import Policy
from asyncrl.trainer.policy_state import pieces, restore
from asyncrl.trainer.rank_files import Piece, RankFiles, rank_file, write

log = logging.getLogger(__name__)

TEMPORARY = ".tmp-"  # a sibling of the target, since a rename does not cross file systems


class Retention(Protocol):
    """The part of CheckpointConfig that says which checkpoints stay."""

    @property
    def keep_last(self) -> int: ...
    @property
    def keep_every(self) -> int | None: ...


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint: where it is, its name, and its state (step, optimizer_steps, ledger, digests, config)."""

    path: Path
    name: CheckpointName
    state: Mapping[str, Any]


def no_path_in_use() -> Collection[Path]:
    """No record of any log names a checkpoint."""
    return ()


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

    def save(
        self,
        name: CheckpointName,
        policy: Policy,
        state: Mapping[str, Any],
        ranks: Ranks,
        *,
        critic: Critic | None = None,
    ) -> Path:
        """Write a checkpoint; every rank calls it together, rank 0 with the state.

        A checkpoint of this name that is sound already is left as it is.
        Raises:
            CheckpointError: on every rank, if one of them could not write. The temporary directory is removed and
                older checkpoints are as they were.
        """
        target = self._directory / str(name)
        temporary = self._begin(target, ranks)
        if temporary is None:
            return target
        own = pieces(policy) if critic is None else chain(pieces(policy), critic_pieces(critic))
        report = msgpack.packb(self._write_rank(temporary, own, ranks))
        reports = ranks.gather(report)
        outcome = "" if reports is None else self._finish(temporary, target, state, list(map(msgpack.unpackb, reports)))
        outcome = ranks.broadcast(outcome.encode() if ranks.rank == 0 else None).decode()
        if outcome:
            raise CheckpointError(outcome)
        if ranks.rank == 0:
            self._delete_expired()
        return target

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
        with RankFiles(saved.path) as stored:
            restore(policy, stored, int(saved.state["optimizer_steps"]))
            if critic is not None:
                restore_critic(critic, stored, saved.state)

    def describe(self, *, verify: bool) -> list[dict[str, str]]:
        """One row for each checkpoint, newest first: path, step, version, state ("complete" or "damaged: ...").

        Args:
            verify: read every byte; otherwise only sizes are compared.
        """
        rows = []
        for name, path in reversed(files.listed(self._directory)):
            wrong = files.problem(path, hashes=verify)
            rows.append(
                {
                    "path": str(path),
                    "step": str(name.step),
                    "version": f"{name.branch}.{name.number}",
                    "state": f"damaged: {wrong}" if wrong else "complete",
                }
            )
        return rows

    def _begin(self, target: Path, ranks: Ranks) -> Path | None:
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

    def _write_rank(self, temporary: Path, own: Iterable[Piece], ranks: Ranks) -> dict[str, Any]:
        path = rank_file(temporary, ranks.rank)
        try:
            write(path, own)
            return {"name": path.name, "bytes": path.stat().st_size, "blake3": files.hash_file(path)}
        except OSError as error:
            return {"error": f"rank {ranks.rank} could not write {path}: {error}"}

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
        sound = [(name, path) for name, path in files.listed(self._directory) if self._is_sound(path)]
        named = {path.resolve() for path in self._in_use()}
        in_use = [name for name, path in sound if path.resolve() in named]
        retention = self._retention
        gone = files.expired([name for name, _ in sound], retention.keep_last, retention.keep_every, in_use)
        for name, path in sound:
            if name in gone:
                # Renamed first: a deletion that is cut short must not leave half a checkpoint under its name.
                doomed = path.rename(path.with_name(f"{TEMPORARY}old-{path.name}"))
                shutil.rmtree(doomed, ignore_errors=True)


def _free_bytes(directory: Path) -> str:
    existing = next((path for path in (directory, *directory.parents) if path.exists()), directory)
    return f"{shutil.disk_usage(existing).free / 1e9:.1f} GB"
