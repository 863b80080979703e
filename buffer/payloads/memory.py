"""Payloads in the memory of this process, for the memory store."""

import time
from collections.abc import Iterable, Mapping
from threading import Lock

from buffer.keys import owns, parse_payload_key


class MemoryPayloads:
    """See `buffer.payloads.PayloadHome`."""

    def __init__(self) -> None:
        self._blobs: dict[str, tuple[float, bytes]] = {}
        self._lock = Lock()

    def put(self, key: str, blob: bytes) -> None:
        with self._lock:
            self._blobs.setdefault(key, (time.monotonic(), blob))

    def get(self, key: str, num_bytes: int | None = None) -> bytes | None:
        with self._lock:
            return self._blobs[key][1] if key in self._blobs else None

    def get_each(self, sizes: Mapping[str, int]) -> dict[str, bytes | None]:
        return {key: self.get(key, size) for key, size in sizes.items()}

    def delete(self, keys: Iterable[str]) -> None:
        with self._lock:
            for key in keys:
                self._blobs.pop(key, None)

    def strays(self, run: str, idle_s: float) -> list[str]:
        until = time.monotonic() - idle_s
        with self._lock:
            old = [key for key, (at, _) in self._blobs.items() if at <= until]
        return [key for key in old if (parts := parse_payload_key(key)) and owns(run, parts[0])]
