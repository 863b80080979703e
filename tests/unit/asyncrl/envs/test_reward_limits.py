"""Limits per minute: never more in any 60 seconds, and no longer a wait than that takes."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.envs.rewards import limits
from asyncrl.envs.rewards.limits import MINUTE_S, MinuteLimits, Share
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


@settings(max_examples=60, deadline=None)
@given(
    num_workers=st.integers(1, 4),
    requests=st.none() | st.integers(4, 9),
    most_tokens=st.none() | st.integers(160, 300),
    tokens=st.lists(st.integers(0, 40), min_size=1, max_size=20),
)
def test_workers_that_share_a_limit_keep_it_together(
    num_workers: int, requests: int | None, most_tokens: int | None, tokens: list[int]
) -> None:
    spent: list[tuple[float, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        for _ in range(num_workers):
            clock = Clock()
            patch.setattr(limits, "pause", clock.pause)
            own = MinuteLimits("judge", requests, most_tokens, clock, share=Share(num_workers))
            spent += zip(asyncio.run(admitted(own, clock, tokens)), tokens, strict=True)
    for start_s, _ in spent:
        within = [size for at_s, size in spent if start_s <= at_s < start_s + MINUTE_S]
        if requests is not None:
            assert len(within) <= requests
        if most_tokens is not None:
            assert sum(within) <= most_tokens


@pytest.mark.parametrize(("requests", "most_tokens", "tokens"), [(2, None, 0), (None, 100, 50)])
def test_who_has_less_than_one_request_a_minute_asks_more_seldom(
    requests: int | None, most_tokens: int | None, tokens: int
) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "pause", clock.pause)
        own = MinuteLimits("judge", requests, most_tokens, clock, share=Share(10))
        times = asyncio.run(admitted(own, clock, [tokens] * 4))
    assert times == pytest.approx([100.0, 400.0, 700.0, 1000.0]), "a fifth of a request a minute"


@in_event_loop
async def test_a_part_changes_with_the_number_of_workers() -> None:
    share = Share(4)
    own = MinuteLimits("judge", 8, None, Clock(), share=share)
    for _ in range(2):
        await own.admit(0)
    assert own.wait_s(0) == MINUTE_S
    share.num_workers = 2
    assert own.wait_s(0) == 0
    share.num_workers = 8
    assert own.wait_s(0) == MINUTE_S


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
