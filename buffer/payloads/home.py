"""What every home of payloads does."""

from collections.abc import Iterable, Mapping
from typing import Protocol

Blob = bytes | memoryview


class PayloadHome(Protocol):
    """Keeps blobs by key, each written once. In payloads/memory, redis, directory; held to
    tests/contract/test_payloads.py."""

    def put(self, key: str, blob: bytes) -> None: ...
    def get(self, key: str, num_bytes: int | None = None) -> Blob | None:
        """num_bytes: what it should have; one byte more of a longer one is enough to tell."""
        ...

    def get_each(self, sizes: Mapping[str, int]) -> Mapping[str, Blob | None]: ...
    def delete(self, keys: Iterable[str]) -> None: ...

    def strays(self, run: str, idle_s: float) -> list[str]:
        """One page of the keys of `run` that nobody has touched for `idle_s`; the next call goes on from there."""
        ...
