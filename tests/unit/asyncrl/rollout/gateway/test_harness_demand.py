"""Prompts are reserved when harnesses ask, and a session goes to one of them."""

import asyncio

import pytest

from asyncrl.rollout.gateway.harness_demand import HarnessDemand
from tests.support.event_loop import in_event_loop
from tests.support.gateway_parts import GatewayParts


async def spin() -> None:
    """Let everything that can go on go on."""
    for _ in range(20):
        await asyncio.sleep(0)


@in_event_loop
async def test_there_is_room_only_while_more_harnesses_wait_than_sessions_are_offered() -> None:
    demand, parts = HarnessDemand(4), GatewayParts()
    room = asyncio.create_task(demand.room())
    await spin()
    assert not room.done()
    takers = [asyncio.create_task(demand.take(10.0)) for _ in range(3)]
    await spin()
    assert room.result() is True
    again = asyncio.create_task(demand.room())
    await spin()
    assert not again.done(), "what was reserved comes to be offered first"
    sessions = [parts.session() for _ in range(2)]
    await asyncio.gather(*(demand.offer(session, 10.0) for session in sessions))
    assert await again is True, "one still waits"
    await spin()
    assert {taker.result().id for taker in takers if taker.done()} == {session.id for session in sessions}
    for taker in takers:
        taker.cancel()
    await asyncio.gather(*takers, return_exceptions=True)
    third = asyncio.create_task(demand.room())
    await spin()
    demand.close()
    assert await third is False
    with pytest.raises(TimeoutError):
        await demand.take(1000.0)  # there will be none
    assert (demand.num_asking, demand.num_offered) == (0, 0)


@in_event_loop
async def test_a_session_that_nobody_takes_is_told_so_and_is_offered_no_more() -> None:
    demand, session = HarnessDemand(4), GatewayParts().session()
    with pytest.raises(TimeoutError):
        await demand.offer(session, 0.01)
    with pytest.raises(TimeoutError):
        await demand.take(0.01)


@in_event_loop
async def test_a_harness_that_leaves_in_the_moment_of_an_offer_does_not_take_the_session_along() -> None:
    demand, session = HarnessDemand(4), GatewayParts().session()
    leaving = asyncio.create_task(demand.take(10.0))
    await spin()
    offer = asyncio.create_task(demand.offer(session, 10.0))
    await asyncio.sleep(0)  # the offer is made, and the harness has not seen it yet
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert await demand.take(10.0) is session
    await offer
