"""Requests that cross a server's good night: what was answered is kept, what waits at its door is asked elsewhere."""

import asyncio

import pytest

from asyncrl import waits
from asyncrl.inference import member
from asyncrl.inference.errors import FellAsleep
from asyncrl.inference.fleet import Session
from tests.support.event_loop import in_event_loop
from tests.support.fake_sglang import FakeServer
from tests.unit.asyncrl.inference.test_fleet import V1, Setting, ask, setting

__all__ = ["setting"]


async def in_flight(server: FakeServer, count: int) -> None:
    """Wait until so many requests are there."""
    await waits.until("test", lambda: len(server.running) == count or None, why=str, deadline_s=10.0, recheck_s=0.01)


@in_event_loop
async def test_a_request_at_the_door_of_a_sleeping_server_goes_elsewhere_and_blames_nobody(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "DOOR_S", 0.05)
    lent, own = setting.server(hold=True), setting.server()
    setting.board.write(lent, V1, "lent")
    fleet = await setting.fleet()
    session = Session()
    asking = asyncio.create_task(ask(fleet, session=session))
    await in_flight(lent, 1)
    setting.board.write(lent, V1, "lent", state="asleep")
    setting.board.write(own, V1, "own")
    await fleet.refresh()
    with pytest.raises(FellAsleep, match="lent"):
        await asking
    assert session.server is None
    assert (await ask(fleet, session=session)).server == "own"
    assert fleet.num_in_flight() == {"lent": 0, "own": 0}
    setting.board.write(lent, V1, "lent")
    await fleet.refresh()
    assert "qualifies" in fleet.why().split(";")[0], "it is not left alone for having slept"
    await fleet.close()


@in_event_loop
async def test_an_answer_that_is_on_its_way_when_the_server_sleeps_is_kept(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "DOOR_S", 30.0)
    lent = setting.server(hold=True, answer_tokens=6)
    setting.board.write(lent, V1, "lent")
    fleet = await setting.fleet()
    asking = asyncio.create_task(ask(fleet))
    await in_flight(lent, 1)
    setting.board.write(lent, V1, "lent", state="asleep")
    await fleet.refresh()
    lent.release()
    assert len((await asking).token_ids) == 7
    await fleet.close()


@in_event_loop
async def test_a_server_that_woke_again_keeps_what_waits_at_its_door(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "DOOR_S", 0.1)
    lent = setting.server(hold=True)
    setting.board.write(lent, V1, "lent")
    fleet = await setting.fleet()
    asking = asyncio.create_task(ask(fleet))
    await in_flight(lent, 1)
    for state in ("asleep", "serving"):
        setting.board.write(lent, V1, "lent", state=state)
        await fleet.refresh()
    await asyncio.wait([asking], timeout=0.3)
    assert not asking.done()
    lent.release()
    assert (await asking).token_ids
    await fleet.close()


@in_event_loop
async def test_who_asked_may_still_give_up(setting: Setting) -> None:
    lent = setting.server(hold=True)
    setting.board.write(lent, V1, "lent")
    fleet = await setting.fleet()
    asking = asyncio.create_task(ask(fleet))
    await in_flight(lent, 1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert fleet.num_in_flight() == {"lent": 0}
    await fleet.close()
