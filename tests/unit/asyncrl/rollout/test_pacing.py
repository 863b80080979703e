"""Slots: who plays, who waits, and when another group may start."""

import asyncio

import pytest

from asyncrl.rollout.pacing import Slots
from tests.support.event_loop import in_event_loop


class Episode:
    """Plays in a slot until it is told to end."""

    def __init__(self, slots: Slots, name: str, started: list[str]) -> None:
        self.end = asyncio.Event()
        self.task = asyncio.create_task(self.play(slots, name, started))

    async def play(self, slots: Slots, name: str, started: list[str]) -> None:
        async with slots.slot():
            started.append(name)
            await self.end.wait()


async def settle() -> None:
    """Let everything that can run now run."""
    for _ in range(5):
        await asyncio.wait([asyncio.create_task(asyncio.Event().wait())], timeout=0)


@pytest.fixture
def started() -> list[str]:
    return []


@in_event_loop
async def test_slots_are_refilled_one_by_one_in_order_of_arrival(started: list[str]) -> None:
    slots = Slots(2)
    episodes = [Episode(slots, name, started) for name in "abcd"]
    await settle()
    assert started == ["a", "b"]
    assert (slots.num_playing, slots.num_queued) == (2, 2)
    episodes[1].end.set()
    await settle()
    assert started == ["a", "b", "c"], "a straggler holds its own slot only"
    for episode in episodes:
        episode.end.set()
    await asyncio.gather(*(episode.task for episode in episodes))
    assert slots.num_playing == 0


@in_event_loop
async def test_there_is_room_when_a_slot_is_free_that_nobody_waits_for(started: list[str]) -> None:
    slots = Slots(2)
    assert await slots.room()
    episodes = [Episode(slots, name, started) for name in "abc"]
    await settle()
    room = asyncio.create_task(slots.room())
    episodes[0].end.set()
    await settle()
    assert started == ["a", "b", "c"]
    assert not room.done(), "the free slot went to c"
    episodes[1].end.set()
    assert await room
    episodes[2].end.set()
    await asyncio.gather(*(episode.task for episode in episodes))


@in_event_loop
async def test_closing_tells_whoever_waits_for_room(started: list[str]) -> None:
    slots = Slots(1)
    episode = Episode(slots, "a", started)
    await settle()
    room = asyncio.create_task(slots.room())
    await settle()
    slots.close()
    assert not await room
    assert not await slots.room()
    episode.end.set()
    await episode.task


@in_event_loop
async def test_an_episode_that_is_cancelled_while_it_waits_loses_no_slot(started: list[str]) -> None:
    slots = Slots(1)
    playing, queued, last = (Episode(slots, name, started) for name in "abc")
    await settle()
    queued.task.cancel()
    await settle()
    playing.end.set()
    await settle()
    assert started == ["a", "c"]
    last.task.cancel()
    await settle()
    assert slots.num_playing == 0


@in_event_loop
async def test_a_slot_handed_over_in_the_moment_of_a_cancellation_is_handed_on(started: list[str]) -> None:
    slots = Slots(1)
    async with slots.slot():
        queued, last = (Episode(slots, name, started) for name in "bc")
        await settle()
    queued.task.cancel()  # it has the slot since the line above, and has not run since
    await settle()
    assert started == ["c"]
    last.end.set()
    await last.task
    assert slots.num_playing == 0
