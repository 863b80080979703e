"""Payloads in a directory or an object store, by any fsspec URL."""

import time
from collections.abc import Iterable
from datetime import datetime
from threading import Lock
from typing import Any

import fsspec

from buffer.keys import owns, parse_payload_key

_NUM_SHELVES = 256


class DirectoryPayloads:
    """See `buffer.payloads.PayloadHome`. A payload is one file, on the shelf that the end of its key names."""

    def __init__(self, url: str) -> None:
        # fsspec ships no types.
        self._files: Any
        self._files, self._root = fsspec.core.url_to_fs(url)
        self._lock = Lock()
        self._next_shelf = 0

    def put(self, key: str, blob: bytes) -> None:
        path = self._path(key)
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        # No rename: nothing names the file before it is whole, and its hash is checked when it is read.
        self._files.pipe_file(path, blob)

    def get(self, key: str) -> bytes | None:
        try:
            return bytes(self._files.cat_file(self._path(key)))
        except FileNotFoundError:
            return None

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            try:
                self._files.rm_file(self._path(key))
            except FileNotFoundError:
                continue  # somebody else finished it: deleting is done by whoever comes first

    def strays(self, run: str, idle_s: float) -> list[str]:
        with self._lock:
            shelf, self._next_shelf = self._next_shelf, (self._next_shelf + 1) % _NUM_SHELVES
        try:
            found = self._files.ls(f"{self._root}/{shelf:02x}", detail=True)
        except FileNotFoundError:
            return []
        until = time.time() - idle_s
        old = [_key(item["name"]) for item in found if item["type"] == "file" and _seconds(item) <= until]
        return [key for key in old if (parts := parse_payload_key(key)) and owns(run, parts[0])]

    def _path(self, key: str) -> str:
        # Object stores and Windows shares do not all take a colon; no part of a key holds a '~'.
        return f"{self._root}/{key[-2:]}/{key.replace(':', '~')}"


def _key(path: str) -> str:
    return path.rpartition("/")[2].replace("~", ":")


def _seconds(item: dict[str, Any]) -> float:
    """When a file was last written. Stores without such a date never give it up: then its files stay."""
    at = next((item[name] for name in ("mtime", "LastModified", "updated", "created") if item.get(name)), None)
    return at.timestamp() if isinstance(at, datetime) else float(at) if isinstance(at, int | float) else time.time()
