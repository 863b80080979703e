"""Requests without a server: who is woken, and that nobody sleeps through a word that was missed."""

import asyncio

import pytest

from asyncrl import waits
from asyncrl.inference.waiting import WAIT, Waiter, Waiters
from tests.support.event_loop import in_event_loop

LONG_S = 60.0


async def waiting_for(waiters: Waiters, version: int, only: str | None = None) -> None:
    with waiters.one_more(lambda found: found >= version, only) as waiter:
        await waiter.until_woken(LONG_S)


async def begun(*tasks: "asyncio.Task[None]") -> None:
    """Let them come to where they wait, or on from there."""
    await asyncio.wait(tasks, timeout=0.05)


@in_event_loop
async def test_only_those_are_woken_that_may_go_on() -> None:
    waiters = Waiters(lambda may_start_on, only: "why")
    old, new, named = (
        asyncio.create_task(waiting_for(waiters, version, only)) for version, only in ((1, None), (2, None), (1, "x"))
    )
    await begun(old, new, named)
    waiters.wake(lambda waiter: waiter.may_start_on(1) and waiter.only is None)
    await begun(old, new, named)
    assert (old.done(), new.done(), named.done()) == (True, False, False)
    waiters.wake(lambda waiter: True)
    async with asyncio.timeout(LONG_S):
        await asyncio.gather(new, named)


@in_event_loop
async def test_who_was_woken_in_vain_waits_again() -> None:
    waiters = Waiters(lambda may_start_on, only: "why")
    with waiters.one_more(lambda version: True, None) as waiter:
        waiters.wake(lambda waiter: True)
        await waiter.until_woken(LONG_S)
        again = asyncio.create_task(waiter.until_woken(LONG_S))
        await begun(again)
        assert not again.done()
        again.cancel()


@pytest.mark.parametrize(("recheck_s", "most_s"), [(0.01, LONG_S), (LONG_S, 0.01)])
@in_event_loop
async def test_nobody_waits_for_ever_for_a_word_that_was_missed(
    monkeypatch: pytest.MonkeyPatch, recheck_s: float, most_s: float
) -> None:
    monkeypatch.setattr("asyncrl.inference.waiting.RECHECK_S", recheck_s)
    async with asyncio.timeout(LONG_S / 2):
        await Waiter(lambda version: True, None).until_woken(most_s)


@in_event_loop
async def test_waits_at_the_same_time_are_one_wait_and_its_reason_is_asked_for() -> None:
    waiters = Waiters(lambda may_start_on, only: f"{only} starts on 2: {may_start_on(2)}")
    with waiters.one_more(lambda version: version >= 2, "x"), waiters.one_more(lambda version: True, None):
        assert [(wait.name, wait.why) for wait in waits.active()] == [(WAIT, "x starts on 2: True")]
    assert waits.active() == []


@in_event_loop
async def test_a_reminder_is_due_once_a_minute_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    waiters = Waiters(lambda may_start_on, only: "why")
    with waiters.one_more(lambda version: True, None):
        assert not waiters.is_reminder_due()
        monkeypatch.setattr("asyncrl.inference.waiting.time.monotonic", lambda: LONG_S * 1e9)
        assert waiters.is_reminder_due()
        assert not waiters.is_reminder_due()
