"""The task of calling a tool: doing as its demonstrations say is right, and its tokenizer writes what parsers read."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncrl.config import RolloutConfig
from asyncrl.config.tools import ToolsConfig
from asyncrl.config.trainer import StarterModelConfig, StarterSftConfig, StarterTaskConfig
from asyncrl.data.rows import PromptRow, row_from_record
from asyncrl.envs import EnvironmentDeps
from asyncrl.envs.base import StepResult
from asyncrl.envs.rewards import RewardPool
from asyncrl.envs.tool_agent import ToolAgent
from asyncrl.rollout.chat import ChatTemplate
from asyncrl.starter.model import CALL_PIECES, build_model, build_tokenizer, save
from asyncrl.starter.problem import Problem
from asyncrl.starter.remainders import draw, written
from asyncrl.starter.supervised import warm_start
from asyncrl.starter.task import rows, training

CONFIG = StarterTaskConfig(name="remainders", train_rows=20, val_rows=4, min_digits=3, max_digits=4)


@pytest.fixture
def deps() -> Iterator[EnvironmentDeps]:
    pool = RewardPool(workers=1, timeout_s=5)
    yield EnvironmentDeps(pool, RolloutConfig(max_turns=3, tools=ToolsConfig(builtin=("calc",))))
    pool.close()


def drawn(count: int = 100) -> list[Problem]:
    rng = random.Random(7)
    return [draw(rng, digits) for digits in (3, 4) for _ in range(count)]


def row(problem: Problem) -> PromptRow:
    values = rows(CONFIG, [problem], "train")[0]
    return row_from_record(values, index=0, prompt_key="prompt")[0]  # type: ignore[arg-type]


async def played(deps: EnvironmentDeps, problem: Problem, *answers: str) -> list[StepResult]:
    """What the environment says to each answer of an episode."""
    environment = ToolAgent(deps)
    await environment.reset(row(problem), seed=0)
    found = [await environment.step(answer, "stop") for answer in answers]
    await environment.close()
    return found


def test_the_environment_says_what_the_demonstrations_show(deps: EnvironmentDeps) -> None:
    async def check() -> None:
        for problem in drawn():
            assert problem.told_by == "tool"
            for said, told in problem.history:
                (step,) = await played(deps, problem, said)
                assert [(message["role"], message["content"]) for message in step.messages] == [("tool", told)]

    asyncio.run(check())


def test_who_calls_the_calculator_and_repeats_its_answer_is_right(deps: EnvironmentDeps) -> None:
    async def check() -> None:
        for problem in drawn(20):
            call = written("calc", problem.prompt.removesuffix("="))
            asked, told = await played(deps, problem, call, str(problem.truth))
            assert asked.messages[0]["content"] == problem.truth
            assert told.reward is not None
            assert told.reward.value == 1.0
            assert problem.answer in (call, problem.truth)

    asyncio.run(check())


def test_a_demonstration_of_a_wrong_behaviour_is_not_right_by_itself(deps: EnvironmentDeps) -> None:
    async def check() -> None:
        for problem in (problem for problem in drawn(20) if not problem.history):
            guess, _, unknown, difference, right = problem.decoys
            assert right == problem.answer
            (guessed,) = await played(deps, problem, guess)
            assert guessed.reward is not None
            assert guessed.reward.value == float(guess == problem.truth)
            for call in (unknown, difference):
                (step,) = await played(deps, problem, call)
                assert not step.done
                assert step.messages[0]["content"] != problem.truth

    asyncio.run(check())


def test_rows_are_scored_as_arithmetic_by_the_remainder() -> None:
    for problem in training(CONFIG, seed=0):
        one, other = (int(number) for number in problem.prompt.removesuffix("=").split("%"))
        found = row(problem)
        assert (found.data_source, found.ground_truth) == ("arithmetic", str(one % other))


def test_calls_and_tools_answers_survive_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(calls_tools=True)
    model = build_model(StarterModelConfig(hidden_size=16, layers=1, heads=2, kv_heads=1), tokenizer, seed=0)
    settings = StarterSftConfig(steps=1, batch_size=2)
    warm_start(model, tokenizer, iter(drawn()), settings, 0, lambda text, done, total: None)
    save(model, tokenizer, tmp_path, "bfloat16")
    chat = ChatTemplate.from_model_dir(tmp_path)
    call = written("calc", "4821%7")
    assert len(chat.encode(call)) == len(CALL_PIECES) + len("calc") + len("expr") + len("4821%7")
    assert chat.decode([*chat.encode(call), *chat.eos_ids]) == call
    told = chat.continuation([{"role": "tool", "name": "calc", "tool_call_id": "c00010000", "content": "5"}])
    assert chat.decode(told) == "<|tool|>5<|assistant|>"


def test_other_tasks_keep_the_tokenizer_that_they_had() -> None:
    plain, calling = build_tokenizer().get_vocab(), build_tokenizer(calls_tools=True).get_vocab()
    assert set(calling) - set(plain) == {"<|tool|>", "%", *CALL_PIECES}
    assert len(plain) == 50
