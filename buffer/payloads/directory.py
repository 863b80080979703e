"""Payloads in a directory or an object store, by any fsspec URL."""

import errno
import logging
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from buffer.errors import BufferError, CorruptPayload, ServerFull, ServerLost
from buffer.json_safe import shown
from buffer.keys import owns, parse_payload_key

log = logging.getLogger(__name__)

_NUM_SHELVES = 256
_FULL = (errno.ENOSPC, errno.EDQUOT)


class DirectoryPayloads:
    """See `buffer.payloads.PayloadHome`. A payload is one file, on the shelf that the end of its key names.

    Raises:
        ServerFull: there was no space for a payload; ServerLost: the home does not answer, or denies us.
    """

    def __init__(self, url: str) -> None:
        # fsspec ships no types.
        self._files: Any
        self._files, self._root = fsspec.core.url_to_fs(url)
        # A store of objects shows an object whole or not at all; a file shows itself while it is written.
        self._drafts = isinstance(self._files, LocalFileSystem)
        self._lock = Lock()
        self._next_shelf = 0

    def put(self, key: str, blob: bytes) -> None:
        path = self._path(key)
        try:
            if not self._drafts:
                self._write(path, blob)
                return
            # What a death leaves of a draft is a stray, and a repeat never cuts short what somebody is reading. No
            # fsync: the ledger itself may lose its last second, and a file's hash is checked when it is read.
            draft = self._path(_draft_of(key))
            self._write(draft, blob)
            Path(draft).replace(path)
        except OSError as error:
            raise self._refused(f"did not take the {len(blob)} bytes of payload {key}", error) from error

    def get(self, key: str, num_bytes: int | None = None) -> bytes | None:
        try:
            end = None if num_bytes is None else num_bytes + 1
            return bytes(self._files.cat_file(self._path(key), end=end))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._refused(f"did not give the payload {key}", error) from error

    def get_each(self, sizes: Mapping[str, int]) -> dict[str, bytes | None]:
        return {key: self.get(key, size) for key, size in sizes.items()}

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            if parse_payload_key(key) is None:
                log.warning("%s is not the key of a payload, so no file of the payloads' home has it", shown(key))
                continue  # it came out of the ledger's trash, and must not keep the rest from being deleted
            try:
                self._files.rm_file(self._path(key))
            except FileNotFoundError:
                continue  # somebody else finished it: deleting is done by whoever comes first
            except OSError as error:
                raise self._refused(f"did not delete the payload {key}", error) from error

    def strays(self, run: str, idle_s: float) -> list[str]:
        with self._lock:
            shelf, self._next_shelf = self._next_shelf, (self._next_shelf + 1) % _NUM_SHELVES
        try:
            found = self._files.ls(f"{self._root}/{shelf:02x}", detail=True)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._refused(f"did not list shelf {shelf:02x}", error) from error
        until = time.time() - idle_s
        old = [_key(item["name"]) for item in found if item["type"] == "file" and _seconds(item) <= until]
        return [key for key in old if (parts := parse_payload_key(key)) and owns(run, parts[0])]

    def _write(self, path: str, blob: bytes) -> None:
        try:
            self._files.pipe_file(path, blob)
        except FileNotFoundError:  # the first on its shelf
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(path, blob)

    def _refused(self, what: str, error: OSError) -> BufferError:
        full = error.errno in _FULL
        fix = "Make room there" if full else "Check that it is there, and that this process may read and write in it"
        return (ServerFull if full else ServerLost)(
            f"buffer.payload.home, {self._root}, {what}: {type(error).__name__}: {error}. {fix}, then start this "
            "process again; what was acknowledged is kept."
        )

    def _path(self, key: str) -> str:
        if parse_payload_key(key) is None:
            # Keys come out of the ledger, and this one becomes a path: with '..' in it, one outside of the home.
            raise CorruptPayload(f"{shown(key)} is not the key of a payload: somebody else wrote it into the ledger.")
        # Object stores and Windows shares do not all take a colon; no part of a key holds a '~'.
        return f"{self._root}/{key[-2:]}/{key.replace(':', '~')}"


def _draft_of(key: str) -> str:
    """A key of the same shelf that no books name, so that `strays` finds it and `delete` removes it."""
    head, _, token = key.rpartition(":")
    return f"{head}:draft-{token}"


def _key(path: str) -> str:
    return path.rpartition("/")[2].replace("~", ":")


def _seconds(item: dict[str, Any]) -> float:
    """When a file was last written. Stores without such a date never give it up: then its files stay."""
    at = next((item[name] for name in ("mtime", "LastModified", "updated", "created") if item.get(name)), None)
    return at.timestamp() if isinstance(at, datetime) else float(at) if isinstance(at, int | float) else time.time()
