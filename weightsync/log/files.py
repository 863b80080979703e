"""Small files that several processes read and replace: writes by rename, one lock, ages by the storage's clock."""

import fcntl
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from urllib.parse import quote

from weightsync.errors import LogLost

_LOCK_S = 30.0
_LOCK_RECHECK_S = 0.005


def safe_name(name: str) -> str:
    """A file name for any text: nothing in a run's or a server's name can leave the folder."""
    return "=" + quote(name, safe="")


class Files:
    """A folder of small files."""

    def __init__(self, root: Path, folders: Sequence[str], closed: threading.Event) -> None:
        self.root = root
        self._closed = closed
        for folder in folders:
            (root / folder).mkdir(parents=True, exist_ok=True)

    def read(self, name: str) -> bytes | None:
        """The file's bytes, None if there is no such file."""
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, blob: bytes) -> None:
        """Put a file in place of whatever is there; a reader sees the one or the other."""
        path = self.root / name
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        temporary.write_bytes(blob)
        temporary.replace(path)

    def touch(self, name: str) -> float:
        """Set a file's time to now; returns it, by the storage's clock."""
        path = self.root / name
        path.touch()
        return path.stat().st_mtime

    def age(self, name: str, now: float) -> float:
        """Seconds since the file was written or touched; infinite if there is none."""
        try:
            return max(0.0, now - (self.root / name).stat().st_mtime)
        except FileNotFoundError:
            return float("inf")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock, against other threads and other processes.

        Raises:
            LogLost: others held it for half a minute.
        """
        end = monotonic() + _LOCK_S
        with (self.root / "lock").open("ab") as stream:
            while True:
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if monotonic() >= end or self._closed.wait(_LOCK_RECHECK_S):
                        raise LogLost(
                            f"{self.root}/lock was held by others for {_LOCK_S} s; nothing was changed. Find the "
                            "process that holds it."
                        ) from None
            yield
