"""Scores by content: the same answer to the same row is scored once, whoever asks, and within a budget."""

import asyncio
from collections.abc import Callable

import pytest

from asyncrl.data.rows import PromptRow
from asyncrl.envs.rewards import Reward
from asyncrl.envs.rewards.cache import CachedScorer, ScoreCache, key_of
from asyncrl.envs.rewards.scorer import SCORED, Outcome
from tests.support.event_loop import in_event_loop
from tests.support.reward_pools import pool_of, row


class Counting:
    """Scores an answer by its length, when it is let."""

    name = "counting"

    def __init__(self, fails: Callable[[str], bool] = lambda text: False) -> None:
        self.asked: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self._fails = fails

    async def start(self) -> None: ...

    async def score(self, row: PromptRow, text: str) -> Outcome:
        self.asked.append(text)
        await self.gate.wait()
        if self._fails(text):
            return Outcome.failed("timeout", "too late")
        return Outcome(SCORED, Reward(float(len(text)), None, {"letters": 1.0}))

    def kill(self) -> None: ...

    async def close(self) -> None: ...


@in_event_loop
async def test_what_was_scored_is_not_asked_again_and_hits_are_counted() -> None:
    inner, cache = Counting(), ScoreCache(10_000)
    pool = pool_of(CachedScorer(inner, cache))
    for text in ("a", "bb", "a", "a"):
        assert (await pool.score(row(), text)).value == len(text)
    assert inner.asked == ["a", "bb"]
    assert (cache.num_hits, cache.num_misses) == (2, 2)
    assert (pool.calls["counting"].num_calls, pool.calls["counting"].num_cached) == (2, 2)


def test_another_row_truth_or_scorer_is_another_content() -> None:
    rows = [row(), row("wrong"), row(source="other"), row(seed=1), PromptRow(0, "mine", (), "right", {})]
    keys = {key_of(name, one, text) for name in ("a", "b") for one in rows for text in ("x", "y")}
    assert len(keys) == 20
    assert key_of("a", row(), "x") == key_of("a", PromptRow(7, *_fields(row())), "x"), "its place is not its content"


def _fields(one: PromptRow) -> tuple[object, ...]:
    return one.data_source, one.messages, one.ground_truth, one.extra_info


@in_event_loop
async def test_equal_answers_on_their_way_are_one_call_and_share_its_failure_too() -> None:
    inner = Counting(fails=lambda text: text == "bad")
    scorer = CachedScorer(inner, ScoreCache(10_000))
    inner.gate.clear()
    tasks = [asyncio.create_task(scorer.score(row(), text)) for text in ("bad", "bad", "good", "good")]
    await asyncio.wait(tasks, timeout=0)
    while len(inner.asked) < 2:
        await asyncio.wait(tasks, timeout=0.01)
    inner.gate.set()
    found = await asyncio.gather(*tasks)
    assert sorted(inner.asked) == ["bad", "good"]
    assert [(one.kind, one.cached) for one in found] == [
        ("timeout", False),
        ("timeout", True),
        ("scored", False),
        ("scored", True),
    ]
    await scorer.score(row(), "bad")
    assert inner.asked.count("bad") == 2, "a failure is not kept"


@in_event_loop
async def test_when_the_one_who_asked_is_cancelled_the_next_asks() -> None:
    inner = Counting()
    scorer = CachedScorer(inner, ScoreCache(10_000))
    inner.gate.clear()
    first, second = (asyncio.create_task(scorer.score(row(), "x")) for _ in range(2))
    while not inner.asked:
        await asyncio.wait([first], timeout=0.01)
    first.cancel()
    await asyncio.wait([first])
    inner.gate.set()
    assert (await second).reward.value == 1.0
    assert inner.asked == ["x", "x"]


def test_the_budget_is_kept_and_the_ones_used_longest_ago_go() -> None:
    cache, reward = ScoreCache(2000), Reward(1.0)
    keys = [bytes([i]) * 32 for i in range(10)]
    for key in keys:
        cache.put(key, reward)
        cache.get(keys[0])
        assert cache.num_bytes <= 2000
    assert cache.get(keys[0]) == reward, "it was used all the time"
    assert cache.get(keys[1]) is None
    assert cache.get(keys[9]) == reward
    cache.put(b"z" * 32, Reward(1.0, None, {"part" * 100: 1.0} | {str(i): 0.0 for i in range(100)}))
    assert cache.get(b"z" * 32) is None, "larger than all of it"


@pytest.mark.parametrize("text", ["\ud800", "\u2028", ""])
def test_any_text_has_a_key(text: str) -> None:
    assert len(key_of("a", row(), text)) == 32
