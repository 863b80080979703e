"""An fsspec store in memory that does what a test says: hangs, fails, and counts what it is asked for."""

import threading
from collections.abc import Callable
from typing import Any

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

PROTOCOL = "faultystore"


class FaultyStore(MemoryFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """`faultystore://`. Not among the protocols whose writes are known to be atomic."""

    protocol = PROTOCOL
    store: dict[str, Any] = {}  # noqa: RUF012  # as in its base, which has its own
    pseudo_dirs: list[str] = [""]  # noqa: RUF012
    before: Callable[[str, str], None] | None = None
    """Called with the operation and the path before each; set on the class, since fsspec keeps instances."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        _before("write", path)
        super().pipe_file(path, value, mode=mode, **kwargs)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        _before("read", path)
        blob: bytes = super().cat_file(path, start=start, end=end, **kwargs)
        return blob

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        _before("move", path1)
        super().mv(path1, path2, **kwargs)

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        _before("list", path)
        return super().ls(path, detail=detail, **kwargs)


def _before(operation: str, path: str) -> None:
    call = FaultyStore.__dict__["before"]
    if call is not None:
        call(operation, path)


class Hanging:
    """A store that answers nothing of one kind until `release` is set; `entered` counts who waits."""

    def __init__(self, operation: str) -> None:
        self._operation = operation
        self.entered = threading.Semaphore(0)
        self.release = threading.Event()

    def __call__(self, operation: str, path: str) -> None:
        if operation == self._operation:
            self.entered.release()
            self.release.wait(30.0)


fsspec.register_implementation(PROTOCOL, FaultyStore, clobber=True)
