"""Limits per minute: never more in any 60 seconds, and no longer a wait than that takes."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.envs.rewards import limits
from asyncrl.envs.rewards.limits import MINUTE_S, MinuteLimits
from tests.support.event_loop import in_event_loop


class Clock:
    """Time that passes only in pauses."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    async def pause(self, name: str, pause_s: float, why: object = None) -> None:
        assert pause_s > 0
        self.now_s += pause_s


async def admitted(own: MinuteLimits, clock: Clock, tokens: list[int]) -> list[float]:
    """When each request was let through."""
    times = []
    for one in tokens:
        await own.admit(one)
        times.append(clock.now_s)
    return times


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 40), max_size=30),
    requests=st.none() | st.integers(1, 5),
    most_tokens=st.none() | st.integers(1, 50),
)
def test_no_minute_has_more_than_the_limits(tokens: list[int], requests: int | None, most_tokens: int | None) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "pause", clock.pause)
        times = asyncio.run(admitted(MinuteLimits("judge", requests, most_tokens, clock), clock, tokens))
    assert times == sorted(times)
    for i, start in enumerate(times):
        within = [j for j in range(i, len(times)) if times[j] < start + MINUTE_S]
        if requests is not None:
            assert len(within) <= requests
        if most_tokens is not None:
            spent = [tokens[j] for j in within if tokens[j]]
            assert sum(spent) <= most_tokens or len(spent) == 1, "one that is larger than the limit passes alone"


@in_event_loop
async def test_a_wait_is_no_longer_than_it_takes_and_the_real_size_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(limits, "pause", clock.pause)
    own = MinuteLimits("judge", None, 100, clock)
    first = await own.admit(90)
    assert own.wait_s(20) == MINUTE_S
    first.took(30)
    assert own.wait_s(20) == 0
    clock.now_s += 10
    second = await own.admit(70)
    second.took(None)
    assert own.wait_s(1) == 50
    clock.now_s += 200
    first.took(1000)
    assert own.wait_s(100) == 0, "what is long past counts no more"


@in_event_loop
async def test_without_limits_nobody_waits_and_nothing_is_kept() -> None:
    own = MinuteLimits("judge", None, None)
    for _ in range(1000):
        (await own.admit(10**9)).took(5)
    assert own.wait_s(10**9) == 0
