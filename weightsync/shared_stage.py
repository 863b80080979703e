"""What the servers of one machine stage together: one of them brings a step, the others link its file.

  <step>.bin    a parts file, complete; each server that needs it has a hard link to it
  <step>.json   where its buckets lie; written last, so that a file without one does not count
  <step>.lock   held by the process that brings the step; the kernel frees it when that one dies
  users         held by every process that uses the folder; the last one to go, or the first after a crash, clears it

A step is named by what makes it (`path_writer.Step.content_name`), so servers at different versions share what is the
same for both and nothing else. numpy only, as the receiver.
"""

import fcntl
import json
import logging
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import BinaryIO

from weightsync.errors import WeightsyncError
from weightsync.path_writer import Parts
from weightsync.ticket import Entry, put_json
from weightsync.transport.base import Deadline

logger = logging.getLogger(__name__)

_USERS = "users"
_OPEN_S = 5.0  # longest wait for a process that clears the folder
_RECHECK_S = (0.01, 0.2)  # between two looks at a lock, which gives no hint when it is freed
_TRIES = 100  # at a lock file that others remove while we open it


class CannotShare(Exception):
    """The folder cannot be used, for the reason in the text; every server then brings its own."""


class SharedStage:
    """One server's use of the folder. For one thread at a time, beside any number of processes."""

    def __init__(self, directory: Path, server: str) -> None:
        """Makes the folder, closed to other users; what is in it is removed if nobody uses it.

        Raises:
            CannotShare: it belongs to another user, or cannot be made.
        """
        self._directory, self._server = directory, server
        self._nobody = threading.Event()
        with _ours(f"{directory} cannot be opened"):
            self._users = self._open()

    def bring(self, name: str, into: Path, download: Callable[[Path, str], Parts], deadline: Deadline) -> Parts | None:
        """A link in `into` to the file of a step, which is downloaded if nobody has it.

        Args:
            name: of the step.
            download: writes the file of a given name into a given folder, checked.
        Returns:
            None: another process has not finished it in half of the time that is left. It may hang, so the rest is for
            bringing the step alone.
        Raises:
            CannotShare: the folder cannot be used.
            Whatever `download` raises.
        """
        patience = monotonic() + deadline.left() / 2
        pause_s, longest_s = _RECHECK_S
        waits = False
        while True:
            if (parts := self._take(name, into)) is not None:
                return parts
            with self._locked(name) as lock:
                if lock is not None:
                    return self._take(name, into) or self._bring(name, into, download, lock)
            if not waits:
                logger.info("weightsync: %s waits for step %s, which %s brings", self._server, name, self._who(name))
                waits = True
            if monotonic() >= patience:
                logger.warning(
                    "weightsync: %s waited for step %s, which %s brings and has not finished; %s",
                    *(self._server, name, self._who(name), "it may hang. This server brings its own."),
                )
                return None
            self._nobody.wait(pause_s)
            pause_s = min(2 * pause_s, longest_s)

    def forget(self, name: str) -> None:
        """Nobody shall link this file any more: an engine refused what is in it."""
        for kind in ("json", "bin"):
            self._path(name, kind).unlink(missing_ok=True)

    def sweep(self, keep: str) -> None:
        """Remove the files of steps that no server has a link to, and what died half-way; `keep` stays."""
        files = [file for file in names_in(self._directory) if "-" in file]
        for name in {file.lstrip(".").partition(".")[0] for file in files} - {keep}:
            with self._locked(name) as lock:
                # Under the lock, so that a file which is being made, or was made a moment ago for somebody, stays.
                if lock is None or self._is_linked(name):
                    continue
                with _ours(f"{self._directory} cannot be swept"):
                    for left in names_in(self._directory):
                        if left.startswith((f"{name}.", f".{name}.")):
                            (self._directory / left).unlink(missing_ok=True)

    def close(self) -> None:
        """This server links nothing any more; the last one removes the folder."""
        with self._users:
            try:
                fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            shutil.rmtree(self._directory, ignore_errors=True)

    def _bring(self, name: str, into: Path, download: Callable[[Path, str], Parts], lock: BinaryIO) -> Parts:
        with _ours(f"{self._directory} cannot be written to"):
            lock.truncate(0)
            lock.write(f"{self._server} (process {os.getpid()})".encode())
            lock.flush()
        made = download(self._directory, f"{name}.bin")
        rows = [[e.bucket, int(e.dense), e.num_changed, e.num_gaps, e.num_escaped, e.at] for e in made.entries]
        put_json(self._path(name, "json"), {"num_bytes": made.num_bytes, "entries": rows})
        if (parts := self._take(name, into)) is None:
            raise CannotShare(f"step {name} left {self._directory} while it was made")
        return parts

    def _take(self, name: str, into: Path) -> Parts | None:
        """A link to a file that is complete, None if there is none."""
        link = into / f"parts-{name}-{secrets.token_hex(4)}.bin"
        with _ours(f"{self._path(name, 'bin')} cannot be linked from {into}"):
            try:
                table = json.loads(self._path(name, "json").read_bytes())
                os.link(self._path(name, "bin"), link)
            except FileNotFoundError:
                if not into.is_dir():  # not the shared file is missing: this server is gone
                    raise
                return None
            if (size := link.stat().st_size) != table["num_bytes"]:
                link.unlink()
                self.forget(name)
                logger.warning("weightsync: step %s had %d bytes of %d", name, size, table["num_bytes"])
                return None
        entries = (Entry(bucket, bool(dense), *rest) for bucket, dense, *rest in table["entries"])
        return Parts(link.name, table["num_bytes"], tuple(entries))

    def _is_linked(self, name: str) -> bool:
        try:
            return self._path(name, "bin").stat().st_nlink > 1
        except FileNotFoundError:
            return False

    @contextmanager
    def _locked(self, name: str) -> Iterator[BinaryIO | None]:
        """Hold the lock of a step; None while another process does."""
        with _ours(f"{self._directory} cannot be locked"):
            lock = _lock(self._path(name, "lock"))
        if lock is None:
            yield None
            return
        with lock:
            yield lock

    def _who(self, name: str) -> str:
        try:
            return self._path(name, "lock").read_text() or "another process"
        except FileNotFoundError:
            return "a process that ended"

    def _open(self) -> BinaryIO:
        end = monotonic() + _OPEN_S
        while True:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            state = self._directory.lstat()
            if self._directory.is_symlink() or state.st_uid != os.getuid() or state.st_mode & 0o077:
                raise CannotShare(f"{self._directory} is not this user's alone: others could give servers weights")
            try:
                users = self._use()
            except FileNotFoundError:  # the last one to go removed the folder meanwhile
                users = None
            if users is not None:
                return users
            if monotonic() >= end:
                raise CannotShare(f"{self._directory}/{_USERS} was held by another process for {_OPEN_S:g} s")
            self._nobody.wait(_RECHECK_S[0])

    def _use(self) -> BinaryIO | None:
        """The users' file with our share of its lock; None if somebody is clearing the folder."""
        path = self._directory / _USERS
        if (users := _lock(path)) is not None:  # nobody is here: what lies here is from before a crash
            for left in self._directory.iterdir():
                if left.name != _USERS:
                    left.unlink()
        else:
            users = path.open("ab")
        try:
            fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            users.close()
            return None
        if _is_at(users, path):
            return users
        users.close()
        return None

    def _path(self, name: str, kind: str) -> Path:
        return self._directory / f"{name}.{kind}"


def names_in(directory: Path) -> list[str]:
    """Names of what lies in a folder, none if it is gone. Path.glob takes four times as long, for each version."""
    try:
        return [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return []


@contextmanager
def _ours(what: str) -> Iterator[None]:
    """Errors of the folder are told apart from those of a download, which may be OSErrors too."""
    try:
        yield
    except OSError as error:
        if isinstance(error, WeightsyncError):
            raise
        raise CannotShare(f"{what}: {error}") from error


def _lock(path: Path) -> BinaryIO | None:
    """The file with its lock, which ends with it; None while another process holds it, or keeps removing it."""
    for _ in range(_TRIES):
        stream = path.open("ab")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.close()
            return None
        if _is_at(stream, path):  # else it is the lock of a file that was removed, and guards nothing
            return stream
        stream.close()
    return None


def _is_at(stream: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except FileNotFoundError:
        return False
