"""Ranks as threads of one process: the collectives of a trainer and of an engine, with real blocking."""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from asyncrl.trainer.meshes import Place

T = TypeVar("T")
DEADLINE_S = 60.0


class RankThread:
    """One rank: weightsync's Collective and the loader's Peers."""

    def __init__(self, group: "RankThreads", rank: int) -> None:
        self._group, self.rank, self.world = group, rank, group.world
        self.place = Place(rank, group.world, group.world)

    def exchange(self, value: T) -> list[T]:
        """Everybody's value by rank."""
        self._group.slots[self.rank] = value
        self._group.gate.wait(DEADLINE_S)
        everyone = list(self._group.slots)
        self._group.gate.wait(DEADLINE_S)
        return everyone  # type: ignore[return-value]  # the slots hold what this call put there

    def gather(self, blob: bytes) -> list[bytes] | None:
        everyone = self.exchange(blob)
        return everyone if self.rank == 0 else None

    def broadcast(self, blob: bytes | None) -> bytes:
        assert (blob is not None) == (self.rank == 0)
        first = self.exchange(blob)[0]
        assert first is not None
        return first

    def barrier(self) -> None:
        self.exchange(None)

    def worst(self, code: int) -> int:
        return max(self.exchange(code))

    def sums(self, values: Sequence[int]) -> list[int]:
        columns = zip(*self.exchange(list(values)), strict=True)
        return [sum(column) & ((1 << 64) - 1) for column in columns]

    def tables(self, rows: Tensor) -> list[Tensor]:
        return self.exchange(torch.clone(rows))


class RankThreads:
    """`world` ranks; `run` calls a function on each in its own thread."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.gate = threading.Barrier(world)
        self.slots: list[object] = [None] * world
        self.ranks = [RankThread(self, rank) for rank in range(world)]

    def run(self, call: Callable[[RankThread], T]) -> list[T | BaseException]:
        """What each rank returned or raised, by rank. A rank that never comes breaks the barrier for all."""
        results: list[T | BaseException] = [AssertionError("never ran")] * self.world

        def one(rank: RankThread) -> None:
            try:
                results[rank.rank] = call(rank)
            except BaseException as error:
                results[rank.rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in self.ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results
