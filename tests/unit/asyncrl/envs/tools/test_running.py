"""The calls of a turn: together but bounded, answered in their order, and no tool ends an episode or a worker."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from asyncrl.config import ToolsConfig
from asyncrl.data.values import Json
from asyncrl.envs.tools import instances
from asyncrl.envs.tools.base import ToolAnswer, ToolError
from asyncrl.envs.tools.calls import CallOutcome, truncated
from asyncrl.envs.tools.parsers import BadCall, ToolCall
from asyncrl.envs.tools.running import ToolRunner, ToolSession
from tests.support.event_loop import in_event_loop
from tests.support.scripted_tools import ScriptedTool, never, stubborn


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "GRACE_S", 0.05)


def session_of(*tools: ScriptedTool, counts: Counter[str] | None = None, **config: Any) -> ToolSession:
    made = ToolsConfig(**{"timeout_s": 5.0, **config})
    runner = ToolRunner({tool.name: tool for tool in tools}, made, Counter() if counts is None else counts)
    return runner.session({})


def call(x: Json = 1, name: str = "calc") -> ToolCall:
    return ToolCall(name, {"x": x})


async def contents(session: ToolSession, *calls: ToolCall | BadCall) -> list[str]:
    return [outcome.content for outcome in await session.answer(calls)]


@in_event_loop
async def test_calls_of_a_turn_run_together_up_to_the_limit_and_are_answered_in_order() -> None:
    gates = [asyncio.Event() for _ in range(6)]

    async def in_reverse(arguments: Mapping[str, Json]) -> ToolAnswer:
        place = arguments["x"]
        assert isinstance(place, int)
        if place % 3 != 2:
            await gates[place + 1].wait()  # the later one of the three that run answers first
        gates[place].set()
        return ToolAnswer(f"answer {place}")

    tool = ScriptedTool(execute=in_reverse)
    session = session_of(tool, max_parallel=3)
    assert await contents(session, *(call(x) for x in range(6))) == [f"answer {x}" for x in range(6)]
    assert tool.most_running == 3
    assert session.num_calls == 6
    await session.close()
    tool.check_released()
    assert len(tool.created) == 1, "one instance for the episode"


@in_event_loop
async def test_a_stuck_tool_costs_its_deadline_and_not_its_neighbours() -> None:
    """B144: the fast call is answered, the slow one is told to have timed out, in the order of the calls."""

    async def slow_if_asked(arguments: Mapping[str, Json]) -> ToolAnswer:
        if arguments["x"] == "slow":
            await never()
        return ToolAnswer("ok")

    counts: Counter[str] = Counter()
    session = session_of(ScriptedTool(execute=slow_if_asked), timeout_s=0.05, counts=counts)
    start = time.monotonic()
    assert await contents(session, call("fast"), call("slow")) == ["ok", "error: timed out after 0.05 s"]
    assert time.monotonic() - start < 3
    assert (counts["tool_calls"], counts["tool_calls_ok"], counts["tool_calls_timeout"]) == (2, 1, 1)


@in_event_loop
async def test_a_tool_that_ignores_its_deadline_is_left_to_itself() -> None:
    async def ignores(arguments: Mapping[str, Json]) -> ToolAnswer:
        await stubborn()
        raise AssertionError

    tool = ScriptedTool(execute=ignores)
    session = session_of(tool, timeout_s=0.02)
    assert await contents(session, call()) == ["error: timed out after 0.02 s"]
    await session.close()
    tool.check_released()


async def _raises(error: BaseException) -> ToolAnswer:
    raise error


@pytest.mark.parametrize(
    ("act", "outcome", "content"),
    [
        (lambda arguments: _raises(ToolError("no such city")), "tool error", "error: no such city"),
        (lambda arguments: _raises(KeyError("x")), "tool failed", "error: KeyError: 'x'"),
        (lambda arguments: _raises(TimeoutError("its own")), "tool failed", "error: TimeoutError: its own"),
        (lambda arguments: _raises(SystemExit(3)), "tool failed", "error: RuntimeError: it called exit(3)"),
        (
            lambda arguments: _raises(asyncio.CancelledError()),
            "tool failed",
            "error: RuntimeError: it cancelled itself",
        ),
        (lambda arguments: asyncio.sleep(0, "text"), "tool failed", "error: TypeError: it answered with a string"),
        (
            lambda arguments: asyncio.sleep(0, ToolAnswer("x", float("nan"))),
            "tool failed",
            "error: TypeError: it gives",
        ),
        (lambda arguments: asyncio.sleep(0, ToolAnswer("x", metrics={"m": "1"})), "tool failed", "error: TypeError"),  # type: ignore[dict-item]
        (lambda arguments: asyncio.sleep(0, ToolAnswer("gone", is_error=True)), "tool error", "error: gone"),
    ],
)
@in_event_loop
async def test_whatever_a_tool_does_is_told_to_the_model_and_counted(act: Any, outcome: str, content: str) -> None:
    counts: Counter[str] = Counter()
    session = session_of(ScriptedTool(execute=act), counts=counts)
    (told,) = await session.answer([call()])
    assert told.outcome == outcome
    assert told.content.startswith(content)
    assert counts == {"tool_calls": 1, told.count_name: 1}


@in_event_loop
async def test_a_broken_or_unknown_call_runs_nothing_and_says_what_there_is() -> None:
    """B139, B140: malformed arguments run nothing. B148: an unknown name lists those that there are."""
    tool, counts = ScriptedTool(), Counter[str]()
    session = session_of(tool, ScriptedTool("find"), counts=counts)
    bad = BadCall("malformed", "", "Write one JSON object.", 70)
    told = await contents(session, bad, call(name="calcualtor"), call(name="n" * 1000), call(7))
    assert told == [
        "error: malformed, in a call of 70 characters. Write one JSON object.",
        "error: unknown tool. There is: calc, find.",
        "error: unknown tool. There is: calc, find.",
        "7",
    ]
    assert len(tool.arguments) == 1
    assert counts == {"tool_calls": 4, "tool_calls_malformed": 1, "tool_calls_unknown_tool": 2, "tool_calls_ok": 1}


@in_event_loop
async def test_junk_of_any_size_is_not_echoed() -> None:
    """B142: the message is at most 1000 characters long and states the length."""
    session = session_of(*(ScriptedTool(f"tool_{i:03}_{'x' * 40}") for i in range(100)))
    told = await session.answer([BadCall("unclosed", "n" * 10**6, "h", 1_000_000), call(name="m" * 10**6)])
    assert all(len(outcome.content) <= 1000 and len(outcome.name) < 100 for outcome in told)
    assert "1000000 characters" in told[0].content


@in_event_loop
async def test_calls_over_the_limit_of_a_turn_are_not_run_and_told_once() -> None:
    tool, counts = ScriptedTool(), Counter[str]()
    session = session_of(tool, max_calls_per_turn=2, counts=counts)
    told = await session.answer([call(x) for x in range(5)])
    assert [outcome.content for outcome in told[:2]] == ["0", "1"]
    assert told[2:] == (
        CallOutcome("too many calls", "", "error: 3 further calls were not run. A turn may have 2 calls at most."),
    )
    assert (len(tool.arguments), counts["tool_calls"], counts["tool_calls_too_many_calls"]) == (2, 5, 3)


@pytest.mark.parametrize(
    ("side", "kept"),
    [
        ("left", "[6 characters left out]...ghij"),
        ("right", "abcd...[6 characters left out]"),
        ("middle", "ab...[6 characters left out]...ij"),
    ],
)
def test_a_long_result_is_cut_on_the_side_that_is_named(side: Any, kept: str) -> None:
    """B145: left keeps the end, right the beginning; the note comes on top of the limit."""
    assert truncated("abcdefghij", 4, side) == kept
    assert truncated("abcd", 4, side) == "abcd"


@in_event_loop
async def test_results_and_errors_are_cut_at_the_limit_and_can_be_encoded() -> None:
    async def long(arguments: Mapping[str, Json]) -> ToolAnswer:
        if arguments["x"] == "raise":
            raise ToolError("e" * 10_000)
        return ToolAnswer("\ud800" + "r" * 10_000)

    session = session_of(ScriptedTool(execute=long), max_result_chars=100, truncate_result="right")
    result, error = await contents(session, call(), call("raise"))
    assert result == "\ufffd" + "r" * 99 + "...[9901 characters left out]"
    assert error.startswith("error: eee")
    assert len(error) < 150


@in_event_loop
async def test_rewards_of_calls_and_of_instances_are_kept_by_tool() -> None:
    async def worth(arguments: Mapping[str, Json]) -> ToolAnswer:
        return ToolAnswer("ok", reward=float(str(arguments["x"])), metrics={"rows": 2.0})

    async def last() -> float:
        return 0.25

    async def broken() -> float:
        raise ValueError("no")

    counts: Counter[str] = Counter()
    tools = (
        ScriptedTool(execute=worth, reward=last),
        ScriptedTool("find", reward=broken),
        ScriptedTool("idle", reward=last),
    )
    session = session_of(*tools, counts=counts)
    await session.answer([call(1), call(2), call(name="find")])
    assert dict(session.rewards) == {"calc": [1.0, 2.0]}
    assert dict(session.metrics) == {"calc/rows": [2.0, 2.0]}
    assert await session.calc_rewards() == {"calc": 0.25, "find": None}
    assert counts["tool_rewards_failed"] == 1


@in_event_loop
async def test_keyword_arguments_of_the_row_reach_create() -> None:
    tool = ScriptedTool()
    runner = ToolRunner({"calc": tool}, ToolsConfig(), Counter())
    info: dict[str, Json] = {"tools_kwargs": {"calc": {"create_kwargs": {"ground_truth": "4"}}, "other": {}}}
    await runner.session(info).answer([call()])
    assert tool.kwargs == [{"ground_truth": "4"}]
    for wrong in ([], {"calc": []}, {"calc": {"create_kwargs": 3}}):
        with pytest.raises(ValueError, match="tools_kwargs"):
            runner.session({"tools_kwargs": wrong})


@in_event_loop
async def test_text_of_a_form_without_types_reaches_the_tool_as_its_schema_says() -> None:
    tool = ScriptedTool()
    parameters: dict[str, Json] = {"properties": {"x": {"type": "integer"}, "y": {"type": "string"}}}
    tool.schema = {"type": "function", "function": {"name": "calc", "parameters": parameters}}
    await session_of(tool).answer([ToolCall("calc", {"x": "3", "y": "3"}, is_untyped=True)])
    assert tool.arguments == [{"x": 3, "y": "3"}]


@in_event_loop
async def test_an_episode_may_call_only_the_tools_that_it_was_given() -> None:
    runner = ToolRunner({"calc": ScriptedTool(), "find": ScriptedTool("find")}, ToolsConfig(), Counter())
    session = runner.session({}, ["find"])
    assert [outcome.outcome for outcome in await session.answer([call(), call(name="find")])] == ["unknown tool", "ok"]
    assert [schema["function"] for schema in session.schemas] == [{"name": "find", "parameters": {}}]
