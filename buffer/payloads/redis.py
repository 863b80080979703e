"""Payloads in Redis, each one string under a key without a hash tag, so that a cluster spreads them."""

from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from typing import Protocol

from buffer.keys import owns, parse_payload_key
from buffer.payloads.home import Blob

_PAGE = 100
_PIECE, _WINDOW = 1 << 20, 4 << 20
_LARGE = _WINDOW


class Blobs(Protocol):
    """What payloads need of a server: the one door to redis is redis_store."""

    def set_blob(self, key: str, blob: bytes) -> None: ...
    def get_blob(self, key: str) -> bytes | None: ...
    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]: ...
    def blob_size(self, key: str) -> int: ...
    def get_blobs(self, keys: Sequence[str]) -> dict[str, bytes | None]: ...
    def unlink(self, keys: Sequence[str]) -> None: ...
    def scan(self, cursors: Mapping[str, int], match: str, count: int) -> tuple[dict[str, int], list[str]]: ...
    def idle_s(self, keys: Sequence[str]) -> dict[str, int]: ...


class RedisPayloads:
    """See `buffer.payloads.PayloadHome`."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._lock = Lock()
        self._cursors: dict[str, int] = {}

    def put(self, key: str, blob: bytes) -> None:
        self._blobs.set_blob(key, blob)

    def get(self, key: str, num_bytes: int | None = None) -> Blob | None:
        if num_bytes is None or num_bytes < _LARGE or (size := self._blobs.blob_size(key)) < _LARGE:
            return self._blobs.get_blob(key)
        return self._in_pieces(key, min(size, num_bytes + 1))

    def get_each(self, sizes: Mapping[str, int]) -> dict[str, Blob | None]:
        small = [key for key, size in sizes.items() if size < _LARGE]
        found: dict[str, Blob | None] = {**self._blobs.get_blobs(small)} if small else {}
        return found | {key: self.get(key, size) for key, size in sizes.items() if key not in found}

    def _in_pieces(self, key: str, size: int) -> Blob | None:
        """A whole answer lies in memory twice, in what was received and as a string; a piece is copied into place."""
        target = memoryview(bytearray(size))
        at = 0
        while at < size:
            starts = range(at, min(at + _WINDOW, size), _PIECE)
            for piece in self._blobs.get_ranges(key, [(start, min(start + _PIECE, size)) for start in starts]):
                target[at : at + len(piece)] = piece
                at += len(piece)
                if not piece:
                    return None  # deleted meanwhile
        return target.toreadonly()

    def delete(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        for start in range(0, len(keys), _PAGE):
            self._blobs.unlink(keys[start : start + _PAGE])

    def strays(self, run: str, idle_s: float) -> list[str]:
        # One page on each server. Its cursor is kept here, so that the calls of a process go through all of them.
        with self._lock:
            self._cursors, keys = self._blobs.scan(self._cursors, f"payload:{run}*", _PAGE)
        mine = [key for key in keys if (parts := parse_payload_key(key)) and owns(run, parts[0])]
        return [key for key, seconds in self._blobs.idle_s(mine).items() if seconds >= idle_s]
