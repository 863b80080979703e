"""What rank 0 decides and the others follow: one answer, broadcast; a failure of rank 0 ends all ranks alike."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgpack

from asyncrl import waits
from asyncrl.errors import AsyncrlError
from asyncrl.trainer.parallel import Channel

Decision = dict[str, Any]  # Any: plain data of msgpack


class RankZeroEnded(AsyncrlError):
    """Rank 0 stopped; the message and the exit code are its own."""


async def decided_by_rank0(ranks: Channel, decide: Callable[[], Awaitable[Decision]]) -> Decision:
    """The decision of rank 0, on every rank.

    Args:
        decide: awaited on rank 0 only; its result is plain data.
    Raises:
        RankZeroEnded: on the other ranks, when rank 0 raised; rank 0 raises what it raised.
    """
    if ranks.rank != 0:
        return _heard(await waits.blocking("rank waits for rank 0", ranks.broadcast, None))
    try:
        decision = await decide()
    except BaseException as error:
        _say_ended(ranks, error)
        raise
    ranks.broadcast(msgpack.packb(decision))
    return decision


def done_by_rank0(channel: Channel, act: Callable[[], Decision]) -> Decision:
    """`decided_by_rank0` for a thread beside the loop, which has a channel of its own and may block."""
    if channel.rank != 0:
        return _heard(channel.broadcast(None))
    try:
        decision = act()
    except BaseException as error:
        _say_ended(channel, error)
        raise
    channel.broadcast(msgpack.packb(decision))
    return decision


def _heard(blob: bytes) -> Decision:
    answer: Decision = msgpack.unpackb(blob, strict_map_key=False)
    if "raised" in answer:
        error = RankZeroEnded(f"Rank 0 ended, so this rank does: {answer['raised']}")
        error.exit_code = answer["exit_code"]
        raise error
    return answer


def _say_ended(channel: Channel, error: BaseException) -> None:
    if channel.world > 1:
        exit_code = error.exit_code if isinstance(error, AsyncrlError) else 1
        channel.broadcast(msgpack.packb({"raised": f"{type(error).__name__}: {error}", "exit_code": exit_code}))
