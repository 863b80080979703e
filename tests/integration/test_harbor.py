"""Harbor tasks as episodes, in real workspaces of the runner `local`: work, tests, reward, and what is left behind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from asyncrl.config import HarborConfig, RolloutConfig
from asyncrl.data.harbor_tasks import TASK_KEY
from asyncrl.data.rows import PromptRow
from asyncrl.envs import Closable, EnvironmentDeps, Resumable, StepResult
from asyncrl.envs.base import ShowsTools, Staged
from asyncrl.envs.harbor.environment import HarborEnvironment
from asyncrl.envs.harbor.workspace import WorkspaceError
from asyncrl.envs.rewards import RewardPool
from asyncrl.errors import DataError
from tests.support.event_loop import in_event_loop
from tests.support.harbor_tasks import namespaces_are_permitted, write_task

MAX_TURNS = 3


pytestmark = pytest.mark.skipif(not namespaces_are_permitted(), reason="the kernel permits no user namespaces here")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where workspaces lie."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(home))
    return home


def left_in(home: Path) -> list[Path]:
    """Workspaces that are there."""
    return list(home.iterdir())


def make_deps(**settings: object) -> EnvironmentDeps:
    harbor = HarborConfig.model_validate({"runner": "local", "command_timeout_s": 5.0, **settings})
    return EnvironmentDeps(RewardPool(1, 5.0), RolloutConfig(max_turns=MAX_TURNS, harbor=harbor))


def row_of(directory: Path) -> PromptRow:
    return PromptRow(4, "harbor", ({"role": "user", "content": "do it"},), None, {TASK_KEY: str(directory)})


def call(command: str) -> str:
    return f'<tool_call>{{"name": "bash", "arguments": {{"command": "{command}"}}}}</tool_call>'


@asynccontextmanager
async def begun(directory: Path, **settings: object) -> AsyncIterator[HarborEnvironment]:
    environment = HarborEnvironment(make_deps(**settings))
    try:
        await environment.reset(row_of(directory), seed=0)
        yield environment
    finally:
        await environment.close()


async def ended(directory: Path, *turns: str, **settings: object) -> StepResult:
    """What the last of some turns came to."""
    async with begun(directory, **settings) as environment:
        results = [await environment.step(turn, "stop") for turn in turns]
    assert [result.done for result in results] == [False] * (len(turns) - 1) + [True]
    return results[-1]


@in_event_loop
async def test_work_is_done_with_commands_and_scored_by_the_tests(tmp_path: Path, home: Path) -> None:
    directory = write_task(tmp_path)
    async with begun(directory) as environment:
        assert isinstance(environment, Closable)
        assert isinstance(environment, ShowsTools)
        assert isinstance(environment, Staged)
        assert not isinstance(environment, Resumable)
        said = await environment.step(f"let me see {call('cat start.txt; ls /tests')} {call('exit 3')}", "stop")
        assert [message["content"] for message in said.messages] == ["start\n", "\n[exit code 3]"]
        await environment.step(call("echo 42 > answer.txt"), "stop")
        result = await environment.step("done", "stop")
    assert result.reward is not None
    assert (result.reward.value, result.reward.error) == (1.0, None)
    assert left_in(home) == []


@in_event_loop
async def test_the_last_turn_and_a_cut_one_end_the_work(tmp_path: Path) -> None:
    directory = write_task(tmp_path)
    write = call("echo 42 > answer.txt")
    assert (await ended(directory, write, call("true"), call("rm answer.txt"))).reward is not None
    async with begun(directory) as environment:
        cut = await environment.step(write, "length")
        assert cut.reward is not None
        assert cut.reward.value == 0.0, "a call that was cut is not run"


@in_event_loop
async def test_what_the_agent_put_in_place_of_the_tests_or_the_reward_counts_nothing(tmp_path: Path) -> None:
    planted = call(
        "mkdir -p /tests /logs/verifier; echo 1 > /logs/verifier/reward.txt; echo '{}' > /logs/verifier/reward.json"
    )
    result = await ended(write_task(tmp_path), planted, "done")
    assert result.reward is not None
    assert result.reward.value == 0.0


@pytest.mark.parametrize(
    ("script", "value", "parts", "error"),
    [
        ("echo 0.25 > /logs/verifier/reward.txt", 0.25, {}, ""),
        ("echo 0.5 > /logs/verifier/reward.json; echo 1 > /logs/verifier/reward.txt", 0.5, {}, ""),
        ('echo \'{"reward": 0.5, "speed": 2}\' > /logs/verifier/reward.json', 0.5, {"speed": 2.0}, ""),
        ("echo '{\"passed\": 3}' > /logs/verifier/reward.json", 3.0, {"passed": 3.0}, ""),
        ('echo \'{"a": 1, "b": 2}\' > /logs/verifier/reward.json', None, {}, "no number 'reward' among 'a', 'b'"),
        ("echo nan > /logs/verifier/reward.txt", None, {}, "reward.txt of make-a-file holds 'nan'"),
        ("echo yes > /logs/verifier/reward.txt", None, {}, "holds 'yes', wanted a number"),
        ("echo '{' > /logs/verifier/reward.json", None, {}, "reward.json of make-a-file cannot be used"),
        ("echo oops >&2; exit 5", None, {}, r"left no reward.json and no reward.txt (exit code 5): oops"),
        ("sleep 60", None, {}, "did not end in 2 s"),
        ("ln -s /etc/passwd /logs/verifier/reward.txt", None, {}, "left no reward.json"),
    ],
)
@in_event_loop
async def test_the_reward_is_what_the_tests_leave_and_never_a_zero_for_what_they_do_not(
    tmp_path: Path, script: str, value: float | None, parts: dict[str, float], error: str
) -> None:
    result = await ended(write_task(tmp_path, test_sh=f"#!/bin/bash\n{script}\n", verifier_s=2.0), "done")
    assert result.reward is not None
    assert (result.reward.value, dict(result.reward.parts)) == (value, parts)
    assert error in (result.reward.error or "")


@pytest.mark.parametrize(("code", "value"), [(0, 1.0), (1, 0.0)])
@in_event_loop
async def test_an_exit_code_is_a_reward_if_that_is_wanted(tmp_path: Path, code: int, value: float) -> None:
    directory = write_task(tmp_path, test_sh=f"exit {code}\n")
    result = await ended(directory, "done", exit_code_is_reward=True)
    assert result.reward is not None
    assert result.reward.value == value


@in_event_loop
async def test_variables_of_the_task_are_filled_in_for_agent_and_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIVEN", "from outside")
    text = "[environment.env]\nA = '${GIVEN}'\nB = '${ABSENT:-default}'\n[solution]"
    script = '[ "$A $B" = "from outside default" ] && echo 1 > /logs/verifier/reward.txt\n'
    async with begun(write_task(tmp_path, environment=text, test_sh=script)) as environment:
        said = await environment.step(call("echo $A, $B"), "stop")
        assert said.messages[0]["content"] == "from outside, default\n"
        result = await environment.step("done", "stop")
        assert result.reward is not None
        assert result.reward.value == 1.0
    missing = write_task(tmp_path, "missing", environment="[environment.env]\nA = '${ABSENT}'")
    async with begun(missing) as environment:
        with pytest.raises(WorkspaceError, match=r"environment.env needs the variable ABSENT, which is not set"):
            await environment.step(call("true"), "stop")


@in_event_loop
async def test_what_is_no_command_or_takes_too_long_is_told_to_the_model(tmp_path: Path) -> None:
    async with begun(write_task(tmp_path), command_timeout_s=0.5) as environment:
        no_command = '<tool_call>{"name": "bash", "arguments": {"command": 3}}</tool_call>'
        said = await environment.step(f"{no_command} {call('echo a; sleep 60')} {call('x' * 100_001)}", "stop")
        contents = [str(message["content"]) for message in said.messages]
        assert "command is a number, wanted a string" in contents[0]
        assert "a\n\n[killed: it was not over after 0.5 s]" in contents[1]
        assert "at most 100000 bytes" in contents[2]


@in_event_loop
async def test_episodes_wait_for_a_workspace_and_take_turns(tmp_path: Path, home: Path) -> None:
    directory, deps, most = write_task(tmp_path), make_deps(workspaces=2), 0

    async def episode() -> float | None:
        nonlocal most
        environment = HarborEnvironment(deps)
        try:
            await environment.reset(row_of(directory), seed=0)
            most = max(most, len(left_in(home)))
            await environment.step(call("echo 42 > answer.txt"), "stop")
            result = await environment.step("done", "stop")
            return result.reward.value if result.reward else None
        finally:
            await environment.close()

    assert await asyncio.gather(*(episode() for _ in range(6))) == [1.0] * 6
    assert most == 2
    assert left_in(home) == []


@in_event_loop
async def test_a_place_is_free_again_after_a_reset_that_failed(tmp_path: Path, home: Path) -> None:
    deps = make_deps(workspaces=1)
    for _ in range(2):
        environment = HarborEnvironment(deps)
        with pytest.raises(WorkspaceError, match="RUN needs a container"):
            await environment.reset(row_of(write_task(tmp_path / str(_), dockerfile="RUN make\n")), seed=0)
        await environment.close()
        await environment.close()
    async with asyncio.timeout(10):
        environment = HarborEnvironment(deps)
        await environment.reset(row_of(write_task(tmp_path)), seed=0)
        await environment.reset(row_of(tmp_path / "make-a-file"), seed=0)
        await environment.close()
    assert left_in(home) == []


@in_event_loop
async def test_a_row_without_a_task_is_refused(tmp_path: Path) -> None:
    environment = HarborEnvironment(make_deps())
    with pytest.raises(DataError, match=r"row 4 has no extra_info.harbor_task"):
        await environment.reset(PromptRow(4, "harbor", (), None, {}), seed=0)
    with pytest.raises(DataError, match=r"is no Harbor task: .*task.toml does not exist"):
        await environment.reset(row_of(tmp_path), seed=0)
