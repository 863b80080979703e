"""Every environment: same seed, same prompt; ends within its turns; its reward is a number or an error; and another
worker can go on with it from any turn."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from asyncrl.config import RolloutConfig
from asyncrl.data.rows import PromptRow
from asyncrl.envs import ENVIRONMENTS, Environment, EnvironmentDeps, Resumable, Reward, StepResult
from asyncrl.envs.rewards import RewardPool

MAX_TURNS = 3
ROW = PromptRow(0, "gsm8k", ({"role": "user", "content": "4*5?"},), "20", {}, ({"name": "calc"},))
CALL = '<tool_call>{"name": "calc", "arguments": {"expr": "4*5"}}</tool_call>'


@pytest.fixture
def deps() -> Iterator[EnvironmentDeps]:
    pool = RewardPool(workers=1, timeout_s=5)
    yield EnvironmentDeps(pool, RolloutConfig(max_turns=MAX_TURNS))
    pool.close()


@pytest.fixture(params=ENVIRONMENTS)
def environment(request: pytest.FixtureRequest, deps: EnvironmentDeps) -> Environment:
    return ENVIRONMENTS[request.param](deps)


async def play(environment: Environment, turns: list[tuple[str, str]]) -> tuple[int, Reward]:
    """Turns until the environment ends the episode, and its reward."""
    await environment.reset(ROW, seed=1)
    for number, (text, finish_reason) in enumerate(turns, start=1):
        result = await environment.step(text, finish_reason)
        if result.done:
            assert result.reward is not None
            return number, result.reward
        assert all(isinstance(message["content"], str) for message in result.messages)
    raise AssertionError("the environment went on after the last turn")


def test_the_same_seed_gives_the_same_prompt(environment: Environment, deps: EnvironmentDeps) -> None:
    first = asyncio.run(environment.reset(ROW, seed=5))
    assert asyncio.run(type(environment)(deps).reset(ROW, seed=5)) == first
    assert first[0]["role"] in ("system", "user")


@pytest.mark.parametrize("text", ["#### 19", CALL, "", "<tool_call>{"])
def test_it_ends_within_its_turns_whatever_the_model_says(environment: Environment, text: str) -> None:
    turns, reward = asyncio.run(play(environment, [(text, "stop")] * MAX_TURNS))
    assert turns <= MAX_TURNS
    assert reward.value == 0.0


def test_a_right_answer_ends_it_at_once_with_full_reward(environment: Environment) -> None:
    assert asyncio.run(play(environment, [("#### 20", "stop")])) == (1, Reward(1.0))


def test_an_answer_that_was_cut_ends_it(environment: Environment) -> None:
    assert asyncio.run(play(environment, [(f"#### 19 {CALL}", "length")])) == (1, Reward(0.0))


def test_it_can_be_reset_for_another_episode(environment: Environment) -> None:
    for _ in range(2):
        turns, _reward = asyncio.run(play(environment, [("#### 19", "stop")] * MAX_TURNS))
        assert turns <= MAX_TURNS


def test_a_reward_that_fails_ends_it_with_the_error(environment: Environment) -> None:
    async def fails() -> Reward:
        await environment.reset(PromptRow(0, "gsm8k", ROW.messages, "no number", {}), seed=1)
        result = await environment.step("#### 1", "stop")
        assert result.done
        assert result.reward is not None
        return result.reward

    reward = asyncio.run(fails())
    assert (reward.value, reward.error) == (None, "exception: the ground truth has no final number")


EPISODES = [
    [("#### 19", "stop")] * MAX_TURNS,
    [(CALL, "stop"), (f"hm {CALL}", "stop"), (CALL, "stop")],
    [("#### 19", "stop"), (CALL, "stop"), ("#### 20", "stop")],
    [(CALL, "stop"), ("#### 20", "length")],
]


async def steps(environment: Environment, turns: list[tuple[str, str]]) -> list[StepResult]:
    """The answers to some turns, up to the end of the episode."""
    answers: list[StepResult] = []
    for text, finish_reason in turns:
        answers.append(await environment.step(text, finish_reason))
        if answers[-1].done:
            break
    return answers


@pytest.mark.parametrize("turns", EPISODES)
def test_an_episode_that_is_continued_elsewhere_from_any_turn_ends_as_the_uninterrupted_one(
    environment: Environment, deps: EnvironmentDeps, turns: list[tuple[str, str]]
) -> None:
    async def check() -> None:
        messages = await environment.reset(ROW, seed=1)
        whole = await steps(environment, turns)
        for done in range(len(whole)):
            await environment.reset(ROW, seed=1)
            assert await steps(environment, turns[:done]) == whole[:done]
            assert isinstance(environment, Resumable)
            state = json.loads(json.dumps(environment.snapshot()))
            answers = await steps(environment, turns[done:])  # what happens after it does not change the snapshot
            other = type(environment)(deps)  # type: ignore[call-arg]  # each is made from EnvironmentDeps
            assert isinstance(other, Resumable)
            assert await other.restore(ROW, seed=1, state=state) == messages, "the first messages, as reset gives them"
            assert other.snapshot() == state
            assert await steps(other, turns[done:]) == answers == whole[done:]

    asyncio.run(check())


@pytest.mark.parametrize("name", ["multi_turn_math", "tool_math"])
@pytest.mark.parametrize("state", [{"turn": "2"}, {"else": 1}])
def test_a_snapshot_of_something_else_is_refused(name: str, state: dict[str, object], deps: EnvironmentDeps) -> None:
    environment = ENVIRONMENTS[name](deps)
    assert isinstance(environment, Resumable)
    with pytest.raises((KeyError, ValueError), match="turn"):
        asyncio.run(environment.restore(ROW, seed=1, state=state))


def test_multi_turn_math_asks_again_and_scores_the_last_answer(deps: EnvironmentDeps) -> None:
    turns = [("#### 19", "stop"), ("#### 20", "stop")]
    assert asyncio.run(play(ENVIRONMENTS["multi_turn_math"](deps), turns)) == (2, Reward(1.0))


def test_tool_math_answers_calls_and_then_scores(deps: EnvironmentDeps) -> None:
    async def first_messages() -> tuple[object, ...]:
        environment = ENVIRONMENTS["tool_math"](deps)
        await environment.reset(ROW, seed=1)
        return (await environment.step(f"let me see {CALL}", "stop")).messages

    assert asyncio.run(first_messages()) == ({"role": "tool", "name": "calc", "content": "20"},)
    turns = [(CALL, "stop"), ("#### 20", "stop")]
    assert asyncio.run(play(ENVIRONMENTS["tool_math"](deps), turns)) == (2, Reward(1.0))
