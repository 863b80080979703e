"""Every instance of a tool that an episode makes is released once, whatever fails, hangs or is cancelled on the way."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.config import ToolsConfig
from asyncrl.data.values import Json
from asyncrl.envs.tools import instances
from asyncrl.envs.tools.base import ToolAnswer
from asyncrl.envs.tools.parsers import ToolCall
from asyncrl.envs.tools.running import ToolRunner
from tests.support.event_loop import in_event_loop
from tests.support.scripted_tools import ScriptedTool, never

TIMEOUT_S = 0.02


@pytest.fixture(autouse=True, scope="module")
def short_grace() -> object:
    patch = pytest.MonkeyPatch()
    patch.setattr(instances, "GRACE_S", 0.01)
    yield
    patch.undo()


async def some_turns_of_the_loop() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def fails() -> None:
    raise OSError("broken")


async def leaves() -> None:
    raise SystemExit(1)


BEHAVIOURS: Mapping[str, Callable[[], Awaitable[None]]] = {
    "at once": lambda: asyncio.sleep(0),
    "later": some_turns_of_the_loop,
    "fails": fails,
    "exits": leaves,
    "hangs": never,
}
behaviours = st.sampled_from(sorted(BEHAVIOURS))


def tool(name: str, create: str, execute: str, release: str) -> ScriptedTool:
    async def answer(arguments: Mapping[str, Json]) -> ToolAnswer:
        await BEHAVIOURS[execute]()
        return ToolAnswer("ok")

    return ScriptedTool(name, answer, create=BEHAVIOURS[create], release=BEHAVIOURS[release])


@settings(max_examples=120, deadline=None)
@given(
    st.lists(st.tuples(behaviours, behaviours, behaviours), min_size=1, max_size=3),
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=3),
    st.integers(0, 40),
    st.integers(0, 10),
    st.booleans(),
)
def test_an_instance_is_released_once_wherever_its_episode_is_cut(
    scripts: list[tuple[str, str, str]], turns: list[list[int]], cancel_after: int, cancel_again: int, whole: bool
) -> None:
    tools = [tool(f"tool{i}", *script) for i, script in enumerate(scripts)]

    async def live() -> None:
        runner = ToolRunner({tool.name: tool for tool in tools}, ToolsConfig(timeout_s=TIMEOUT_S), Counter())

        async def episode() -> None:
            session = runner.session({})
            try:
                for calls in turns:
                    await session.answer([ToolCall(f"tool{i % len(tools)}", {}) for i in calls])
                await session.calc_rewards()
            finally:
                await session.close()

        task = asyncio.create_task(episode())
        if not whole:
            for pause in (cancel_after, cancel_again):
                for _ in range(pause):
                    await asyncio.sleep(0)
                task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await runner.close()

    asyncio.run(live())
    for each in tools:
        each.check_released()


@in_event_loop
async def test_an_episode_that_called_nothing_makes_nothing() -> None:
    idle = ScriptedTool()
    session = ToolRunner({"calc": idle}, ToolsConfig(), Counter()).session({})
    await session.close()
    assert not idle.created


@in_event_loop
async def test_a_closed_episode_gets_no_new_instance_and_closing_twice_is_once() -> None:
    used = ScriptedTool()
    session = ToolRunner({"calc": used}, ToolsConfig(), Counter()).session({})
    await session.answer([ToolCall("calc", {})])
    await session.close()
    await session.close()
    (told,) = await session.answer([ToolCall("calc", {})])
    assert told.outcome == "tool failed"
    used.check_released()


@in_event_loop
async def test_a_create_that_failed_is_released_and_tried_again_by_the_next_call() -> None:
    attempts = iter([OSError("not yet"), None])

    async def second_time() -> None:
        if (error := next(attempts)) is not None:
            raise error

    flaky = ScriptedTool(create=second_time)
    session = ToolRunner({"calc": flaky}, ToolsConfig(), Counter()).session({})
    first = await session.answer([ToolCall("calc", {}), ToolCall("calc", {})])
    assert [outcome.content for outcome in first] == ["error: OSError: not yet"] * 2
    (told,) = await session.answer([ToolCall("calc", {"x": 1})])
    assert told.content == "1"
    await session.close()
    flaky.check_released()
    assert len(flaky.created) == 2


@in_event_loop
async def test_a_release_that_fails_is_counted_and_not_repeated() -> None:
    counts: Counter[str] = Counter()
    broken = ScriptedTool(release=fails)
    session = ToolRunner({"calc": broken}, ToolsConfig(), counts).session({})
    await session.answer([ToolCall("calc", {})])
    await session.close()
    broken.check_released()
    assert counts["tool_releases_failed"] == 1


@in_event_loop
async def test_an_episode_keeps_state_once_it_has_called_a_tool_that_does() -> None:
    tools = {"calc": ScriptedTool(keeps_state=False), "shell": ScriptedTool("shell")}
    session = ToolRunner(tools, ToolsConfig(), Counter()).session({})
    await session.answer([ToolCall("calc", {})])
    assert not session.keeps_state
    await session.answer([ToolCall("shell", {})])
    assert session.keeps_state
