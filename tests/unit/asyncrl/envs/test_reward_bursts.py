"""Answers that come together and a function for one answer: how many go to its process in one message."""

import asyncio
import gc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from asyncrl.data.values import Json
from asyncrl.envs.rewards.process import ProcessDiedEarly, RewardProcess
from asyncrl.envs.rewards.processes import TOGETHER_S, FunctionScorer, _Call
from tests.support.event_loop import in_event_loop
from tests.support.reward_pools import row


class Messages:
    """Stands for a process: the texts of each message, and how long each answer takes it."""

    def __init__(self, call_s: float) -> None:
        self.call_s, self.texts = call_s, list[list[str]]()
        self.before_reply: Callable[[], object] = lambda: None

    async def score(self, jobs: Sequence[Mapping[str, Json]], timeout_s: float) -> tuple[list[dict[str, Json]], float]:
        texts = [str(job["solution_str"]) for job in jobs]
        self.texts.append(texts)
        await asyncio.sleep(0)  # the others come in meanwhile
        self.before_reply()
        for text, error in (("crash", ProcessDiedEarly("code 1")), ("hang", TimeoutError()), ("nan", ValueError("x"))):
            if text in texts:
                raise error
        return [{"value": float(text), "parts": {}, "answer": None} for text in texts], self.call_s * len(jobs)


def started(monkeypatch: pytest.MonkeyPatch, call_s: float, batch_size: int = 64) -> tuple[FunctionScorer, Messages]:
    messages = Messages(call_s)
    monkeypatch.setattr(RewardProcess, "score", lambda self, jobs, timeout_s: messages.score(jobs, timeout_s))
    return FunctionScorer("file", 1, 5.0, Path("reward.py"), batch_size=batch_size), messages


async def burst(scorer: FunctionScorer, texts: Sequence[str]) -> list[float | str]:
    """What each answer got: its reward, or the word for what went wrong."""
    outcomes = await asyncio.gather(*(scorer.score(row(), text) for text in texts))
    return [one.kind if one.reward.value is None else one.reward.value for one in outcomes]


NINE = [str(number) for number in range(9)]


@pytest.mark.parametrize(
    ("call_s", "batch_size", "sizes"),
    [
        (TOGETHER_S / 1000, 64, [1, 8]),
        (TOGETHER_S / 1000, 3, [1, 3, 3, 2]),
        (TOGETHER_S / 4, 64, [1, 4, 4]),
        (TOGETHER_S * 2, 64, [1] * 9),
        (0.0, 64, [1, 8]),
    ],
)
@in_event_loop
async def test_quick_answers_go_together_and_slow_ones_alone(
    monkeypatch: pytest.MonkeyPatch, call_s: float, batch_size: int, sizes: list[int]
) -> None:
    scorer, messages = started(monkeypatch, call_s, batch_size)
    assert await burst(scorer, NINE) == [float(text) for text in NINE]
    assert [len(texts) for texts in messages.texts] == sizes


@pytest.mark.parametrize(("text", "kind"), [("crash", "died"), ("hang", "timeout"), ("nan", "exception")])
@in_event_loop
async def test_an_answer_that_goes_wrong_costs_itself_alone(
    monkeypatch: pytest.MonkeyPatch, text: str, kind: str
) -> None:
    scorer, messages = started(monkeypatch, TOGETHER_S / 1000)
    assert await burst(scorer, ["1", "2", text, "3"]) == [1.0, 2.0, kind, 3.0]
    assert messages.texts == [["1"], ["2", text, "3"], ["2"], [text], ["3"]]


@in_event_loop
async def test_a_function_that_has_become_slow_is_asked_alone_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer, messages = started(monkeypatch, TOGETHER_S / 1000)
    await burst(scorer, NINE)
    messages.call_s = 1.0
    await burst(scorer, NINE)
    await burst(scorer, NINE)
    assert [len(texts) for texts in messages.texts] == [1, 8, 1, *[1] * 8, *[1] * 9]


@in_event_loop
async def test_what_is_closed_in_a_burst_starts_no_process_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer, messages = started(monkeypatch, TOGETHER_S / 1000)
    await burst(scorer, ["1"])
    messages.before_reply = lambda: scorer.kill() if len(messages.texts) == 3 else None
    assert await burst(scorer, ["1", "2", "crash", "3"]) == [1.0, "closed", "closed", "closed"]
    assert messages.texts == [["1"], ["1"], ["2", "crash", "3"]]


@in_event_loop
async def test_a_call_that_is_over_leaves_nothing_to_the_search_for_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer, _ = started(monkeypatch, TOGETHER_S / 1000)
    gc.collect()
    gc.disable()
    try:
        await burst(scorer, NINE)
        assert [found for found in gc.get_objects() if type(found) is _Call] == []
    finally:
        gc.enable()
