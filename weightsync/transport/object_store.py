"""Parts in an object store, by any fsspec URL: s3://bucket/folder, gs://, az://, ...

A part is one object, written by one call. How long a call of fsspec's takes is not in our hands, so each runs in a
thread that is left behind at the deadline.
"""

import errno
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from weightsync.errors import CorruptDelta, PartMissing, TransportError, TransportFull, TransportLost
from weightsync.log.files import safe_name
from weightsync.transport.base import Deadline, run_prefix, split_key
from weightsync.transport.bounded_calls import BoundedCalls

_ATOMIC = frozenset(
    {"memory", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "tos", "r2", "obs", "cos", "bos"}
)
"""Protocols whose stores show an object whole or not at all. Elsewhere a part is written under another name first."""

_MOST_CALLS = 16  # at once: bounds the threads and, times the size of a part, the bytes that a dead store can hold
_TIDY_S = 60.0  # for each listing and each removal of an upload, which have no deadline of their own
_SEAMS_OF_AN_UPLOAD = 2  # <version>~<base>~<nonce>
_FULL = (errno.ENOSPC, errno.EDQUOT)

T = TypeVar("T")


class ObjectStoreTransport:
    """Transport over an object store that both sides reach. Thread-safe and safe between processes."""

    parts_outlive_writer = True
    parallel_gets = 8  # a get takes tens of milliseconds, however small

    def __init__(self, url: str, run: str) -> None:
        """
        Raises:
            TransportError: fsspec, or what it needs for this protocol, is not installed, or the URL is none of its own.
        """
        # Any: fsspec ships no types.
        self._files: Any
        self._files, root = _opened(url)
        self._root = f"{root.rstrip('/')}/{safe_name(run)}/parts"
        self._prefix = run_prefix(run)
        self._atomic = url.partition("://")[0] in _ATOMIC
        self._calls = BoundedCalls(_MOST_CALLS)

    def announce(self, branch: int, rank: int) -> None:
        """Parts do not stay with their writer."""

    def put_part(self, key: str, parts: Sequence[memoryview], *, deadline_s: float) -> None:
        deadline = Deadline(deadline_s, f"put of part {key}")
        folder, name = self._place(key)
        blob = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

        def put() -> None:
            if self._atomic:  # no folder is made: of a missing bucket that would make one
                self._files.pipe_file(f"{folder}/{name}", blob)
                return
            draft = f"{folder}/.{name}.{os.getpid()}.{threading.get_ident()}"
            self._files.makedirs(folder, exist_ok=True)
            self._files.pipe_file(draft, blob)
            try:
                self._files.mv(draft, f"{folder}/{name}")
            except FileExistsError:  # a call before this one had lost its answer: the part is there
                self._files.rm_file(draft)

        try:
            self._run(put, f"part {key}, {len(blob)} bytes, could not be written", deadline)
        except FileNotFoundError as error:
            raise TransportError(
                f"{folder}: part {key} could not be written: {error}. Check that the bucket or folder of "
                "weightsync.directory is there."
            ) from error

    def get_part_into(self, key: str, target: memoryview, *, deadline_s: float) -> int:
        deadline = Deadline(deadline_s, f"get of part {key}")
        folder, name = self._place(key)
        view = target.cast("B")
        # One byte more than the record says is enough to tell a longer part. A range of an empty object is refused.
        ends = {"start": 0, "end": len(view) + 1} if len(view) else {}
        try:
            blob = self._run(
                lambda: self._files.cat_file(f"{folder}/{name}", **ends), f"part {key} could not be read", deadline
            )
        except FileNotFoundError:
            raise PartMissing(
                f"{folder}/{name} is not there: the part was pruned, or weightsync.directory is another store here."
            ) from None
        if len(blob) != len(view):
            more = "or more " if len(blob) > len(view) else ""
            raise CorruptDelta(f"part {key} has {len(blob)} bytes {more}in {folder}, the record says {len(view)}.")
        view[:] = blob
        return len(view)

    def delete(self, prefix: str) -> int:
        count = 0
        for upload in self.uploads(self._prefix):
            if not (upload.startswith(prefix) or prefix.startswith(upload)):
                continue
            folder = self._folder(upload)
            names = self._list(folder)
            gone = [n for n in names if n.startswith(".") or f"{upload}{n.replace('~', ':')}".startswith(prefix)]
            self._remove(folder, gone, whole=len(gone) == len(names))
            count += sum(not name.startswith(".") for name in gone)
        return count

    def uploads(self, prefix: str) -> list[str]:
        names = (name for name in self._list(self._root) if name.count("~") == _SEAMS_OF_AN_UPLOAD)
        found = (f"{self._prefix}{name.replace('~', ':')}:" for name in names)
        return sorted(upload for upload in found if upload.startswith(prefix))

    def close(self) -> None:
        """The store's connections are fsspec's, which shares them within the process."""

    def _remove(self, folder: str, names: Sequence[str], *, whole: bool) -> None:
        def remove() -> None:
            try:
                if whole:  # stores have one call for many objects
                    self._files.rm(folder, recursive=True)
                    return
                for name in names:
                    self._files.rm_file(f"{folder}/{name}")
            except FileNotFoundError:
                return  # somebody else finished it; the next delete looks again

        self._run(remove, f"{folder} could not be removed", Deadline(_TIDY_S, f"delete of {folder}"))

    def _list(self, folder: str) -> list[str]:
        def names() -> list[str]:
            # What others wrote since the last listing must be seen: fsspec remembers listings.
            self._files.invalidate_cache()
            return sorted(path.rstrip("/").rpartition("/")[2] for path in self._files.ls(folder, detail=False))

        try:
            return self._run(names, f"{folder} could not be listed", Deadline(_TIDY_S, f"listing of {folder}"))
        except FileNotFoundError:
            return []

    def _run(self, call: Callable[[], T], what: str, deadline: Deadline) -> T:
        """Raises FileNotFoundError as it is; whatever else a store's library raises becomes one of ours."""
        try:
            return self._calls.run(call, deadline)
        except (TransportError, FileNotFoundError):
            raise
        except Exception as error:
            text = f"{self._root}: {what}: {type(error).__name__}: {error}."
            if isinstance(error, OSError) and error.errno in _FULL:
                raise TransportFull(
                    f"{text} Make room, or lower weightsync.keep_deltas and raise weightsync.anchor_interval."
                ) from error
            if isinstance(error, ConnectionError | TimeoutError):
                raise TransportLost(f"{text} Check that the store of weightsync.directory can be reached.") from error
            raise TransportError(
                f"{text} Check that weightsync.directory is there, and that this process may read and write in it."
            ) from error

    def _place(self, key: str) -> tuple[str, str]:
        upload, name = split_key(key)
        return self._folder(upload), name.replace(":", "~")

    def _folder(self, upload: str) -> str:
        if not upload.startswith(self._prefix):
            raise ValueError(f"{upload!r} is another run's: this transport moves parts of {self._prefix!r}.")
        # Object stores do not all take a colon. Numbers and nonces hold no '~'.
        return f"{self._root}/{upload[len(self._prefix) : -1].replace(':', '~')}"


def _opened(url: str) -> tuple[Any, str]:
    """(fsspec's file system, path in it) of a URL."""
    try:
        from fsspec.core import url_to_fs
        from fsspec.registry import known_implementations
    except ImportError as error:
        raise TransportError(
            "weightsync.directory is a URL, and fsspec is not installed here: pip install fsspec, or give a folder."
        ) from error
    protocol = url.partition("://")[0]
    # The URL itself may hold a password.
    what = f"weightsync.directory is a {protocol}:// URL"
    try:
        opened: tuple[Any, str] = url_to_fs(url)
    except ImportError as error:
        known = known_implementations.get(protocol, {}).get("class", "")
        package = known.partition(".")[0]
        fix = "" if package in ("", "fsspec") else f": pip install {package}"
        raise TransportError(
            f"{what}, for which fsspec needs another package ({error}). Install it where the trainer and the servers' "
            f"hosts run{fix}."
        ) from error
    except ValueError as error:
        raise TransportError(
            f"{what} that fsspec cannot open: {error}. Give a folder, or a store that fsspec knows, like "
            "s3://bucket/folder."
        ) from error
    return opened
