"""Ranks that act as one: what rank 0 decides all do, and what fails on one fails on all."""

from collections.abc import Callable
from typing import Any, Protocol

import msgpack

from weightsync import errors
from weightsync.errors import WeightsyncError


class Collective(Protocol):
    """What weightsync needs of a process group. Every method is called by all ranks in the same order."""

    rank: int
    world: int

    def gather(self, blob: bytes) -> list[bytes] | None:
        """Every rank's bytes by rank, on rank 0; None elsewhere."""
        ...

    def broadcast(self, blob: bytes | None) -> bytes:
        """Rank 0's bytes, on every rank."""
        ...

    def barrier(self) -> None:
        """Return when every rank is here."""
        ...


class Alone:
    """The only rank."""

    rank, world = 0, 1

    def gather(self, blob: bytes) -> list[bytes] | None:
        """Its own bytes."""
        return [blob]

    def broadcast(self, blob: bytes | None) -> bytes:
        """Its own bytes."""
        assert blob is not None
        return blob

    def barrier(self) -> None:
        """Nobody to wait for."""


# Any: what crosses between ranks is msgpack of plain values; each caller knows its own.
def from_rank_zero(collective: Collective, call: Callable[[], Any]) -> Any:
    """Run `call` on rank 0; its plain answer, or its error, on every rank."""
    own: Exception | None = None
    blob = None
    if collective.rank == 0:
        try:
            blob = msgpack.packb([True, call()])
        except Exception as error:  # whatever it is: the others would wait for this rank for ever
            own, blob = error, msgpack.packb([False, type(error).__name__, str(error)])
    answer = msgpack.unpackb(collective.broadcast(blob), strict_map_key=False)
    if own is not None:
        raise own
    return _opened(answer)


def from_all(collective: Collective, call: Callable[[], Any]) -> list[Any]:
    """Run `call` on every rank; the plain answers by rank, or the lowest failed rank's error, on every rank."""
    own: Exception | None = None
    try:
        blob = msgpack.packb([True, call()])
    except Exception as error:  # as above
        own, blob = error, msgpack.packb([False, type(error).__name__, f"rank {collective.rank}: {error}"])
    gathered = collective.gather(blob)
    table = collective.broadcast(None if gathered is None else msgpack.packb(gathered))
    answers = [msgpack.unpackb(entry, strict_map_key=False) for entry in msgpack.unpackb(table)]
    if own is not None:
        raise own
    for answer in answers:
        _opened(answer)
    return [answer[1] for answer in answers]


def _opened(answer: list[Any]) -> Any:
    if answer[0]:
        return answer[1]
    kind = getattr(errors, answer[1], WeightsyncError)
    if isinstance(kind, type) and issubclass(kind, WeightsyncError):
        raise kind(answer[2])
    raise WeightsyncError(f"{answer[1]}: {answer[2]}")
