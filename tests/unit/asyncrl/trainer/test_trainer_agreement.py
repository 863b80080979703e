"""Rank 0 decides: its answer and its failure reach the others."""

import asyncio

import pytest

from asyncrl.errors import CheckpointError, FencedOut
from asyncrl.trainer.agreement import RankZeroEnded, decided_by_rank0
from asyncrl.trainer.parallel import OneRank


class Wire(OneRank):
    """One rank of two, joined by a list."""

    def __init__(self, rank, wire):
        super().__init__()
        self.rank, self.world, self.wire = rank, 2, wire

    def broadcast(self, blob):
        if self.rank == 0:
            self.wire.append(blob)
            return blob
        return self.wire.pop(0)


async def answer():
    return {"do": "train", "shares": [[1, 2], [3]]}


async def failure():
    raise FencedOut("a newer trainer owns the run")


async def never():
    raise AssertionError("only rank 0 decides")


def test_the_decision_is_the_same_on_every_rank():
    wire = []
    first = asyncio.run(decided_by_rank0(Wire(0, wire), answer))
    assert asyncio.run(decided_by_rank0(Wire(1, wire), never)) == first == asyncio.run(answer())


def test_a_failure_of_rank_0_ends_the_others_with_its_words_and_exit_code():
    wire = []
    with pytest.raises(FencedOut):
        asyncio.run(decided_by_rank0(Wire(0, wire), failure))
    with pytest.raises(RankZeroEnded, match="FencedOut: a newer trainer owns the run") as ended:
        asyncio.run(decided_by_rank0(Wire(1, wire), never))
    assert ended.value.exit_code == FencedOut.exit_code


def test_alone_the_error_is_its_own():
    async def broken():
        raise CheckpointError("full")

    with pytest.raises(CheckpointError):
        asyncio.run(decided_by_rank0(OneRank(), broken))
