"""Environments written for verifiers, played over the bridge: with a stand-in of what it uses of the library, and with
the library itself where ASYNCRL_VERIFIERS_PYTHON names a Python that has it (scripts/setup --verifiers makes one)."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import pytest

from asyncrl.config import RolloutConfig, VerifiersConfig
from asyncrl.data.converters import ConvertedRow
from asyncrl.data.converters.verifiers import ROW_KEY, convert
from asyncrl.data.rows import PromptRow, row_from_record
from asyncrl.envs import EnvironmentDeps, StepResult
from asyncrl.envs.rewards import RewardPool
from asyncrl.envs.verifiers.environment import VerifiersEnvironment
from asyncrl.envs.verifiers.process import BridgeError, VerifiersProcess
from asyncrl.errors import ConfigError, DataError
from tests.support.event_loop import in_event_loop

SUPPORT = Path(__file__).resolve().parents[1] / "support"
VARIABLE = "ASYNCRL_VERIFIERS_PYTHON"
MAX_TURNS = 4
CALL = '<tool_call>{"name": "times", "arguments": {"a": "3", "b": "5"}}</tool_call>'


@pytest.fixture(params=["stand-in", "verifiers"])
def python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python that has verifiers, or the stand-in, and the sample environments."""
    paths = [str(SUPPORT / "verifiers_environments")]
    if request.param == "stand-in":
        paths.append(str(SUPPORT / "verifiers_stand_in"))
    elif VARIABLE not in os.environ:
        pytest.skip(f"the library itself is not tested: there is no {VARIABLE}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    return Path(sys.executable if request.param == "stand-in" else os.environ[VARIABLE]).absolute()


def config_of(python: Path, kind: str, **settings: object) -> VerifiersConfig:
    args = json.dumps({"kind": kind})
    return VerifiersConfig.model_validate(
        {"environment": "sample-environments", "args": args, "python": python, **settings}
    )


@asynccontextmanager
async def deps_of(python: Path, kind: str, **settings: object) -> AsyncIterator[EnvironmentDeps]:
    rollout = RolloutConfig(max_turns=MAX_TURNS, verifiers=config_of(python, kind, **settings))
    deps = EnvironmentDeps(RewardPool(1, 5.0), rollout)
    try:
        yield deps
    finally:
        await deps.resources.close()


def rows_of(deps: EnvironmentDeps) -> list[PromptRow]:
    """The environment's own data set, as `asyncrl data prepare verifiers` writes it."""
    own = deps.config.verifiers
    return _rows(str(own.environment), own.args, str(own.python), os.environ["PYTHONPATH"])


@cache
def _rows(environment: str, args: str, python: str, path: str) -> list[PromptRow]:
    settings = {"environment": environment, "args": args, "python": python}
    found = [row for row in convert(None, settings) if isinstance(row, ConvertedRow)]
    return [row_from_record(row.values, index=i, prompt_key="prompt")[0] for i, row in enumerate(found)]


async def play(environment: VerifiersEnvironment, row: PromptRow, *turns: str) -> list[StepResult]:
    await environment.reset(row, seed=0)
    try:
        return [await environment.step(turn, "stop") for turn in turns]
    finally:
        await environment.close()


def value_of(result: StepResult) -> float | None:
    assert result.reward is not None
    return result.reward.value


@in_event_loop
async def test_one_turn_is_scored_by_the_rubric(python: Path) -> None:
    async with deps_of(python, "single") as deps:
        rows = rows_of(deps)
        assert [row.data_source for row in rows] == ["verifiers"] * 2
        environment = VerifiersEnvironment(deps)
        messages = await environment.reset(rows[1], seed=0)
        assert messages == (
            {"role": "system", "content": "Answer with a number."},
            {"role": "user", "content": "3*5?"},
        )
        right = await environment.step("15", "stop")
        assert right.reward is not None
        assert (right.reward.value, right.reward.error) == (1.5, None)
        assert {"exact": 1.0, "short": 1.0}.items() <= right.reward.parts.items()
        assert value_of((await play(environment, rows[1], "4"))[0]) == 0.5
        assert value_of((await play(environment, rows[0], "four"))[0]) == 0.0


@in_event_loop
async def test_many_episodes_of_several_turns_keep_apart(python: Path) -> None:
    async with deps_of(python, "hints") as deps:
        rows = rows_of(deps)

        async def episode(number: int) -> list[StepResult]:
            wrong = [f"try {number}"] * (number % MAX_TURNS)
            return await play(VerifiersEnvironment(deps), rows[number % 2], *wrong, ("4", "15")[number % 2])

        for number, results in enumerate(await asyncio.gather(*(episode(number) for number in range(32)))):
            hint = ("small", "odd")[number % 2]
            told = [result.messages[0]["content"] for result in results[:-1]]
            assert told == [f"wrong, {hint} {turn + 1}" for turn in range(number % MAX_TURNS)]
            assert results[-1].done


@in_event_loop
async def test_our_limit_of_turns_ends_it_with_a_reward(python: Path) -> None:
    async with deps_of(python, "hints") as deps:
        row = rows_of(deps)[0]
        results = await play(VerifiersEnvironment(deps), row, *["no"] * MAX_TURNS)
        assert [result.done for result in results] == [False] * (MAX_TURNS - 1) + [True]
        assert value_of(results[-1]) == 0.5


@in_event_loop
async def test_tools_are_shown_called_and_answered(python: Path) -> None:
    async with deps_of(python, "tools") as deps:
        row = rows_of(deps)[1]
        environment = VerifiersEnvironment(deps)
        await environment.reset(row, seed=0)
        function = environment.tools[0]["function"]
        assert isinstance(function, dict)
        assert function["name"] == "times"
        answered = await environment.step(f"let me see {CALL} {CALL}", "stop")
        assert [(m["role"], m["name"], m["content"], m["tool_call_id"]) for m in answered.messages] == [
            ("tool", "times", "15", "c00010000"),
            ("tool", "times", "15", "c00010001"),
        ]
        assert value_of(await environment.step("15", "stop")) == 1.5


@in_event_loop
async def test_a_reward_function_that_raises_is_an_error_and_no_zero(python: Path) -> None:
    async with deps_of(python, "broken") as deps:
        row = rows_of(deps)[0]
        (result,) = await play(VerifiersEnvironment(deps), row, "4")
        assert result.reward is not None
        assert result.reward.value is None
        assert "broken: RuntimeError: the judge is away" in str(result.reward.error)


@in_event_loop
async def test_what_the_environment_raises_fails_its_episode_alone(python: Path) -> None:
    async with deps_of(python, "hints") as deps:
        rows = rows_of(deps)
        other = VerifiersEnvironment(deps)
        await other.reset(rows[0], seed=0)
        with pytest.raises(BridgeError, match="KeyError: 'no such room'"):
            await play(VerifiersEnvironment(deps), rows[1], "raise", "15")
        (_, failed) = await play(VerifiersEnvironment(deps), rows[1], "no", "fail")
        assert failed.reward is not None
        assert (failed.reward.value, "the room is on fire" in str(failed.reward.error)) == (None, True)
        assert (await other.step("no", "stop")).messages[0]["content"] == "wrong, small 1"
        await other.close()


@in_event_loop
async def test_a_conversation_that_is_changed_is_refused(python: Path) -> None:
    async with deps_of(python, "forgets") as deps:
        row = rows_of(deps)[0]
        with pytest.raises(BridgeError, match="changed the conversation of 1 messages"):
            await play(VerifiersEnvironment(deps), row, "no")


@in_event_loop
async def test_a_process_that_dies_is_told_to_all_and_started_anew(python: Path) -> None:
    async with deps_of(python, "hints") as deps:
        rows = rows_of(deps)
        other = VerifiersEnvironment(deps)
        await other.reset(rows[0], seed=0)
        with pytest.raises(BridgeError, match="ended with code 3"):
            await play(VerifiersEnvironment(deps), rows[0], "crash")
        with pytest.raises(BridgeError, match="ended with code 3"):
            await other.step("4", "stop")
        await other.close()
        (first, second) = await play(VerifiersEnvironment(deps), rows[1], "no", "15")
        assert (first.done, second.done) == (False, True)


@in_event_loop
async def test_an_environment_that_hangs_is_left_at_the_deadline_and_started_anew(
    python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl.envs.verifiers.process.END_S", 0.2)
    async with deps_of(python, "hints", turn_timeout_s=1.0) as deps:
        rows = rows_of(deps)
        with pytest.raises(BridgeError, match=r"1 s passed before it answers a turn"):
            await play(VerifiersEnvironment(deps), rows[0], "hang")
        assert (await play(VerifiersEnvironment(deps), rows[0], "no"))[0].messages


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"args": '{"kind": "group"}'}, "scores a group of rollouts together"),
        ({"args": '{"kind": "none"}'}, "KeyError: 'none'"),
        ({"environment": "absent-environment"}, "absent.environment"),
        ({"environment": None}, "rollout.verifiers.environment is not set"),
        ({"python": Path("/absent/python")}, "rollout.verifiers.python = /absent/python cannot be started"),
    ],
)
@in_event_loop
async def test_what_cannot_be_loaded_says_which_key(python: Path, settings: dict[str, object], says: str) -> None:
    config = config_of(python, "single").model_copy(update=settings)
    with pytest.raises(ConfigError, match=says) as raised:
        await VerifiersProcess.start(config, MAX_TURNS)
    assert str(raised.value).startswith("rollout.verifiers.")


@in_event_loop
async def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    config = config_of(Path(sys.executable), "single")
    with pytest.raises(ConfigError, match=r"No module named 'verifiers'.*needs verifiers 0.1.11 to 0.3"):
        await VerifiersProcess.start(config, MAX_TURNS)


@in_event_loop
async def test_a_row_of_another_data_set_is_refused(python: Path) -> None:
    async with deps_of(python, "single") as deps:
        for extra in ({}, {ROW_KEY: "[1]"}, {ROW_KEY: "{"}):
            with pytest.raises(DataError, match=f"row 7 has no extra_info.{ROW_KEY}"):
                await VerifiersEnvironment(deps).reset(PromptRow(7, "verifiers", (), None, extra), seed=0)


@pytest.mark.parametrize("args", ["[1]", "{", "null"])
def test_arguments_that_are_no_object_are_refused(args: str) -> None:
    with pytest.raises(ValueError, match=r"rollout.verifiers.args = "):
        VerifiersConfig(args=args)
