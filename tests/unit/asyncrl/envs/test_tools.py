"""Tool calls: whatever the model writes, it gets an answer, and only well-formed calls run, once."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from asyncrl.config import ToolsConfig
from asyncrl.data.values import Json
from asyncrl.envs.tools.base import Tool, ToolAnswer, ToolError
from asyncrl.envs.tools.calculator import Calculator, calc
from asyncrl.envs.tools.calls import CallOutcome
from asyncrl.envs.tools.parsers import PARSERS, parse_turn
from asyncrl.envs.tools.running import ToolRunner
from tests.support.event_loop import in_event_loop
from tests.support.scripted_tools import ScriptedTool

CASES = Path(__file__).parents[3] / "support" / "data_files" / "tool_calls_malformed.jsonl"


async def run_calls(text: str, tool: Tool) -> tuple[CallOutcome, ...]:
    """What becomes of the calls of a turn in Hermes' form."""
    session = ToolRunner({tool.name: tool}, ToolsConfig(), Counter()).session({})
    return await session.answer(parse_turn(PARSERS["hermes"], text).calls)


@pytest.mark.parametrize("case", [json.loads(line) for line in CASES.read_text().splitlines()])
@in_event_loop
async def test_a_response_has_the_expected_outcome_and_runs_at_most_once(case: dict[str, str]) -> None:
    """A call without a name is answered, and the run goes on (B110)."""

    async def counted(arguments: Mapping[str, Json]) -> ToolAnswer:
        return ToolAnswer(calc(arguments))

    tool = ScriptedTool(execute=counted)
    outcomes = await run_calls(case["response"], tool)
    assert [outcome.outcome for outcome in outcomes] == [case["expect"]]
    assert tool.arguments == ([{"expr": "2+2"}] if case["expect"].startswith("ok") else [])
    message = outcomes[0].message("c00010000")
    assert (message["role"], message["tool_call_id"]) == ("tool", "c00010000")
    assert message["content"] == "4" if tool.arguments else str(message["content"]).startswith("error: ")


@in_event_loop
async def test_several_calls_run_in_order_and_text_without_calls_runs_none() -> None:
    call = '<tool_call>{"name": "calc", "arguments": {"expr": "%s"}}</tool_call>'
    outcomes = await run_calls(f"first {call % '1+1'} then {call % '1/0'} and {call % '3*3'}", Calculator())
    assert [outcome.content for outcome in outcomes] == ["2", "error: division by zero", "9"]
    assert await run_calls("the answer is 4", Calculator()) == ()


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2+2", "4"),
        ("1/3 + 1/6", "0.5"),
        ("0.1+0.2", "0.3"),
        ("-(7 // 2) ** 2", "-9"),
        ("2**-1", "0.5"),
        ("7 % 4", "3"),
    ],
)
def test_the_calculator_is_exact(expression: str, value: str) -> None:
    assert calc({"expr": expression}) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "__import__('os')",
        "().__class__.__bases__[0].__subclasses__()",
        "9**9**9",
        "2**0.5",
        "x",
        "1 if 1 else 2",
        "(" * 150,
        "1e400*1e400",
        "True",
        "'a'*3",
        "1//0",
        "0**-1",
    ],
)
def test_the_calculator_refuses_what_is_no_short_arithmetic(expression: str) -> None:
    """B149: no name is looked up, and no power is computed that has no end."""
    with pytest.raises(ToolError):
        calc({"expr": expression})


def test_arguments_of_the_wrong_type_are_refused() -> None:
    for arguments in ({}, {"expr": 4}, {"expr": "1+" * 200 + "1"}):
        with pytest.raises(ToolError):
            calc(arguments)
