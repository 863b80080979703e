"""Every environment: same seed, same prompt; ends within its turns; its reward is a number or an error; and another
worker can go on with it from any turn."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from asyncrl.config import RolloutConfig, ToolsConfig
from asyncrl.data.rows import PromptRow
from asyncrl.envs import ENVIRONMENTS, Environment, EnvironmentDeps, Resumable, Reward, StepResult
from asyncrl.envs.rewards import RewardPool

MAX_TURNS = 3
ROW = PromptRow(0, "gsm8k", ({"role": "user", "content": "4*5?"},), "20", {}, ({"name": "calc"},))
CALL = '<tool_call>{"name": "calc", "arguments": {"expr": "4*5"}}</tool_call>'


@dataclass(frozen=True)
class Case:
    """What an environment is held to: a row, what is right for it, and what is not."""

    row: PromptRow
    right: str
    wrong: tuple[str, ...]


SUM = Case(ROW, "#### 20", ("#### 19", CALL, "", "<tool_call>{"))
GAME = Case(
    PromptRow(0, "text_game", ({"role": "user", "content": "guess 0 to 9"},), "7", {}),
    "7",
    ("3", "8", "", "what?", "77", CALL),
)
CASES: Mapping[str, Case] = {"text_game": GAME}
"""By the name of the environment; the others are held to SUM."""
FROM_ELSEWHERE = {"harbor", "verifiers"}
"""Environments that need more than a row, in tests/integration/test_harbor.py and test_verifiers.py."""


@pytest.fixture
def deps() -> Iterator[EnvironmentDeps]:
    pool = RewardPool(workers=1, timeout_s=5)
    yield EnvironmentDeps(pool, RolloutConfig(max_turns=MAX_TURNS, tools=ToolsConfig(builtin=("calc",))))
    pool.close()


@pytest.fixture(params=[name for name in ENVIRONMENTS if name not in FROM_ELSEWHERE])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def environment(name: str, deps: EnvironmentDeps) -> Environment:
    return ENVIRONMENTS[name](deps)


@pytest.fixture
def case(name: str) -> Case:
    return CASES.get(name, SUM)


async def play(environment: Environment, turns: list[tuple[str, str]], row: PromptRow = ROW) -> tuple[int, Reward]:
    """Turns until the environment ends the episode, and its reward."""
    await environment.reset(row, seed=1)
    for number, (text, finish_reason) in enumerate(turns, start=1):
        result = await environment.step(text, finish_reason)
        if result.done:
            assert result.reward is not None
            return number, result.reward
        assert all(isinstance(message["content"], str) for message in result.messages)
    raise AssertionError("the environment went on after the last turn")


def test_the_same_seed_gives_the_same_prompt(environment: Environment, deps: EnvironmentDeps, case: Case) -> None:
    first = asyncio.run(environment.reset(case.row, seed=5))
    assert asyncio.run(type(environment)(deps).reset(case.row, seed=5)) == first  # type: ignore[call-arg]
    assert first[0]["role"] in ("system", "user")


def test_it_ends_within_its_turns_whatever_the_model_says(environment: Environment, case: Case) -> None:
    for text in case.wrong:
        turns, reward = asyncio.run(play(environment, [(text, "stop")] * MAX_TURNS, case.row))
        assert turns <= MAX_TURNS
        assert reward.value == 0.0


def test_a_right_answer_ends_it_at_once_with_full_reward(environment: Environment, case: Case) -> None:
    turns, reward = asyncio.run(play(environment, [(case.right, "stop")], case.row))
    assert (turns, reward.value, reward.error) == (1, 1.0, None)


def test_an_answer_that_was_cut_ends_it(environment: Environment, case: Case) -> None:
    turns, reward = asyncio.run(play(environment, [(f"{case.wrong[0]} {CALL}", "length")], case.row))
    assert (turns, reward.value) == (1, 0.0)


def test_it_can_be_reset_for_another_episode(environment: Environment, case: Case) -> None:
    for _ in range(2):
        turns, _reward = asyncio.run(play(environment, [(case.wrong[0], "stop")] * MAX_TURNS, case.row))
        assert turns <= MAX_TURNS


def test_a_reward_that_fails_ends_it_with_the_error(environment: Environment) -> None:
    if getattr(environment, "scores_itself", False):
        pytest.skip("it asks no reward of the table")

    async def fails() -> Reward:
        await environment.reset(PromptRow(0, "gsm8k", ROW.messages, "no number", {}), seed=1)
        result = await environment.step("#### 1", "stop")
        assert result.done
        assert result.reward is not None
        return result.reward

    reward = asyncio.run(fails())
    assert (reward.value, reward.error) == (None, "exception: the ground truth has no final number")


async def steps(environment: Environment, turns: list[tuple[str, str]]) -> list[StepResult]:
    """The answers to some turns, up to the end of the episode."""
    answers: list[StepResult] = []
    for text, finish_reason in turns:
        answers.append(await environment.step(text, finish_reason))
        if answers[-1].done:
            break
    return answers


def episodes(case: Case) -> list[list[tuple[str, str]]]:
    """Turns of some episodes: wrong to the end, mixed, right in the end, cut in the end."""
    wrong = [(text, "stop") for text in case.wrong]
    return [
        [wrong[0]] * MAX_TURNS,
        [wrong[1], (f"hm {wrong[1][0]}", "stop"), wrong[1]],
        [wrong[0], wrong[1], (case.right, "stop")],
        [wrong[1], (case.right, "length")],
    ]


@pytest.mark.parametrize("number", range(4))
def test_an_episode_that_is_continued_elsewhere_from_any_turn_ends_as_the_uninterrupted_one(
    environment: Environment, deps: EnvironmentDeps, case: Case, number: int
) -> None:
    turns = episodes(case)[number]

    async def check() -> None:
        messages = await environment.reset(case.row, seed=1)
        whole = await steps(environment, turns)
        for done in range(len(whole)):
            await environment.reset(case.row, seed=1)
            assert await steps(environment, turns[:done]) == whole[:done]
            assert isinstance(environment, Resumable)
            state = json.loads(json.dumps(environment.snapshot()))
            answers = await steps(environment, turns[done:])  # what happens after it does not change the snapshot
            other = type(environment)(deps)  # type: ignore[call-arg]  # each is made from EnvironmentDeps
            assert isinstance(other, Resumable)
            first = await other.restore(case.row, seed=1, state=state)
            assert first == messages, "the first messages, as reset gives them"
            assert other.snapshot() == state
            assert await steps(other, turns[done:]) == answers == whole[done:]

    asyncio.run(check())


@pytest.mark.parametrize("name", ["multi_turn_math", "tool_math", "tool_agent", "text_game"])
@pytest.mark.parametrize("state", [{"turn": "2"}, {"else": 1}])
def test_a_snapshot_of_something_else_is_refused(name: str, state: dict[str, object], deps: EnvironmentDeps) -> None:
    environment = ENVIRONMENTS[name](deps)
    assert isinstance(environment, Resumable)
    row = CASES.get(name, SUM).row
    with pytest.raises((KeyError, ValueError), match="turn"):
        asyncio.run(environment.restore(row, seed=1, state=state))


def test_multi_turn_math_asks_again_and_scores_the_last_answer(deps: EnvironmentDeps) -> None:
    turns = [("#### 19", "stop"), ("#### 20", "stop")]
    assert asyncio.run(play(ENVIRONMENTS["multi_turn_math"](deps), turns)) == (2, Reward(1.0, answer="20"))


@pytest.mark.parametrize("name", ["tool_math", "tool_agent"])
def test_an_environment_with_tools_answers_calls_and_then_scores(name: str, deps: EnvironmentDeps) -> None:
    async def first_messages() -> tuple[object, ...]:
        environment = ENVIRONMENTS[name](deps)
        await environment.reset(ROW, seed=1)
        return (await environment.step(f"let me see {CALL}", "stop")).messages

    answer = {"role": "tool", "name": "calc", "tool_call_id": "c00010000", "content": "20"}
    assert asyncio.run(first_messages()) == (answer,)
    turns = [(CALL, "stop"), ("#### 20", "stop")]
    assert asyncio.run(play(ENVIRONMENTS[name](deps), turns)) == (2, Reward(1.0, answer="20"))
