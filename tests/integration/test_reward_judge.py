"""A language model as a scorer: what it is asked, how its score is read, and what is no score."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncrl.config.reward import JudgeConfig
from asyncrl.data.rows import PromptRow
from asyncrl.envs.rewards import Reward, RewardPool, endpoint
from asyncrl.envs.rewards.judge import Judge, filled
from asyncrl.errors import RewardError
from tests.support.event_loop import in_event_loop
from tests.support.reward_pools import opened, pool_of
from tests.support.reward_server import ScriptedServer, scripted_server

ROW = PromptRow(0, "essays", ({"role": "user", "content": "Why {answer}?"},), "because {question}", {})


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "FIRST_PAUSE_S", 0.0)


def says(content: object, finish_reason: str = "stop", total_tokens: object = 30) -> tuple[int, dict[str, Any]]:
    """A reply of /chat/completions."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": finish_reason}
    return 200, {"choices": [choice], "usage": {"total_tokens": total_tokens}}


@asynccontextmanager
async def judged(server: ScriptedServer, **settings: Any) -> AsyncIterator[RewardPool]:
    own = {"name": "style", "model": "big", "max_attempts": 1, "lowest": -1.0, "highest": 10.0, **settings}
    config = JudgeConfig(url=server.url.removesuffix("/score") + "/v1", **own)
    async with opened(pool_of(Judge(config, 20.0, environment={"KEY": "sk-secret"}))) as pool:
        yield pool


async def score(reply: object, **settings: Any) -> Reward:
    with scripted_server(reply) as server:
        async with judged(server, **settings) as pool:
            return await pool.score(ROW, "an answer")


@in_event_loop
async def test_the_judge_is_asked_with_the_question_the_answer_and_the_truth() -> None:
    with scripted_server(says("Score: 10")) as server:
        async with judged(server, prompt="{question}|{answer}|{ground_truth}|{data_source}|{x}", max_tokens=7) as pool:
            assert await pool.score(ROW, "{ground_truth}") == Reward(1.0)
    assert server.requests == [
        {
            "model": "big",
            "messages": [
                {"role": "user", "content": "Why {answer}?|{ground_truth}|because {question}|essays|{x}"},
            ],
            "temperature": 0,
            "max_tokens": 7,
        }
    ]
    assert server.paths == ["/v1/chat/completions"]


def test_what_is_filled_in_cannot_fill_in_anything() -> None:
    assert filled("[{answer}]", ROW, "{ground_truth} {question}") == "[{ground_truth} {question}]"


@pytest.mark.parametrize(
    ("content", "score_read"),
    [
        ("Reward: 10", 10.0),  # B121: not 1
        ("Reward: 1e-1", 0.1),
        ("Reward: -0.5", -0.5),
        ("Score: 3\nOn second thought, score: **7**.", 7.0),
        ('<think>Score: 1</think>"Score": 4', 4.0),
        ("rating = 8/10", 8.0),
        ("Grade: 5.", 5.0),
    ],
)
@in_event_loop
async def test_a_score_is_read_as_a_whole(content: str, score_read: float) -> None:
    assert (await score(says(content))).value == pytest.approx((score_read + 1) / 11)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (says("Reward: nan"), "no number"),  # B121
        (says("Score: 10x"), "no number"),
        (says("Score: 1,5"), "1.5"),
        (says("Score: 8/9"), "no number"),
        (says("Score: 11"), "not between -1 and 10"),
        (says("I would say ten."), "gave no score"),
        (says("Score: 10", finish_reason="length"), "was cut"),
        (says(None), r"no choices\[0\].message.content"),
        ((200, {"choices": []}), r"no choices\[0\].message.content"),
        ((200, [1]), r"no choices\[0\].message.content"),
    ],
)
@in_event_loop
async def test_what_is_no_score_is_a_failed_reward_and_never_a_number(reply: object, said: str) -> None:
    reward = await score(reply)
    if said == "1.5":  # a comma ends a number: 1 is what it says before it
        assert reward.value == pytest.approx(2 / 11)
        return
    assert reward.value is None
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(reward.error)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"score": 4.5, "style": 1, "why": "ok"}', Reward(0.5, None, {"style": 1.0})),
        ('First {"score": 0}, then\n```json\n{"score": "10"}\n```', Reward(1.0)),
        ('{"a": {"score": 3}} {"score": 10}', Reward(1.0)),
        ('{"other": 1}', None),
        ('{"score": true}', None),
        ('{"score": NaN}', None),
        ("{" * 5000, None),
    ],
)
@in_event_loop
async def test_a_score_in_json_is_the_last_object_that_has_it(content: str, expected: Reward | None) -> None:
    reward = await score(says(content), score_key="score", score_pattern=None)
    if expected is None:
        assert reward.value is None
    else:
        assert reward == expected


@in_event_loop
async def test_a_reply_without_a_score_is_asked_for_again_and_a_busy_judge_too() -> None:
    with scripted_server(says("hm"), (503, {}), (429, {}), says("Score: 10")) as server:
        async with judged(server, max_attempts=4) as pool:
            assert (await pool.score(ROW, "x")).value == 1.0
            assert pool.calls["style"].outcomes == {"scored": 1}
    assert len(server.requests) == 4
    with scripted_server(says("hm"), says("hm")) as server:
        async with judged(server, max_attempts=2) as pool:
            error = (await pool.score(ROW, "x")).error or ""
    assert error.startswith("bad_reply: 2 attempts; the last: judge style gave no score")


@in_event_loop
async def test_the_key_goes_out_in_the_header_and_nowhere_else() -> None:
    with scripted_server((401, b"sk-secret is no key of mine")) as server:
        async with judged(server, api_key_env="KEY") as pool:
            error = (await pool.score(ROW, "x")).error or ""
    assert server.headers[0]["Authorization"] == "Bearer sk-secret"
    assert "status 401" in error
    assert "sk-secret" not in error
    with pytest.raises(RewardError, match="environment variable OTHER that should hold its key is not"):
        Judge(JudgeConfig(name="a", url="http://x/v1", model="m", api_key_env="OTHER"), 1.0, environment={})
