"""Parsers of tool calls: each form is read, and what is broken is named."""

import re

import pytest

from asyncrl.config import ToolsConfig
from asyncrl.data.values import Json
from asyncrl.envs.tools.parsers import (
    PARSERS,
    BadCall,
    ParsedTurn,
    ToolCall,
    find_parser,
    parse_turn,
    typed,
)
from asyncrl.errors import ConfigError
from tests.support.chat_models import FAMILIES
from tests.support.written_calls import BROKEN, MANY, TRICKY, WRITTEN

NAMES = {dict: "object", list: "array", str: "string", int: "integer", float: "number"}


def schema_of(arguments: dict[str, Json]) -> dict[str, Json]:
    """The schema of a tool with these arguments."""
    properties: dict[str, Json] = {key: {"type": NAMES[type(value)]} for key, value in arguments.items()}
    return {"type": "function", "function": {"name": "find", "parameters": {"properties": properties}}}


def kinds(parser: str, text: str) -> list[str]:
    """What became of each call: its tool, or what is wrong with it."""
    return [c.name if isinstance(c, ToolCall) else c.kind for c in parse_turn(PARSERS[parser], text).calls]


def test_the_configuration_offers_exactly_the_parsers_there_are() -> None:
    allowed = ToolsConfig.model_json_schema()["properties"]["parser"]["enum"]
    assert allowed == ["auto", *PARSERS]
    assert set(WRITTEN) == set(PARSERS)


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("arguments", [{}, {"x": 1}, TRICKY, {"q": "line\nbreak\ttab"}, {"deep": [[[[{"a": [1]}]]]]}])
def test_what_a_form_writes_is_read_as_it_was(parser: str, arguments: dict[str, Json]) -> None:
    turn = parse_turn(PARSERS[parser], WRITTEN[parser]("find", arguments))
    (call,) = turn.calls
    assert isinstance(call, ToolCall)
    assert (turn.text, typed(call, schema_of(arguments))) == ("", ToolCall("find", arguments))


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize(
    "text",
    ["", "The answer is 4.", '{"answer": 4}', "[1, 2]", "a < b <tool", "[see above](link) ", '{"name": "Ann"}', "{"],
)
def test_an_answer_is_no_call(parser: str, text: str) -> None:
    assert parse_turn(PARSERS[parser], text) == ParsedTurn(text, ())


@pytest.mark.parametrize("parser", PARSERS)
def test_a_call_within_a_thought_is_a_thought(parser: str) -> None:
    call = WRITTEN[parser]("find", {"x": 1})
    thought = f"\n<think>\nI could {call} or\n{call}\n</think>\n\n"
    alone = parse_turn(PARSERS[parser], call).calls
    assert parse_turn(PARSERS[parser], thought + call) == ParsedTurn(thought, alone)
    assert kinds(parser, call) == ["find"]
    assert parse_turn(PARSERS[parser], thought.rstrip().removesuffix("</think>")).calls == ()
    opened = f"{call}</think>"
    assert parse_turn(PARSERS[parser], opened + call, in_thought=True) == ParsedTurn(opened, alone)


@pytest.mark.parametrize("parser", MANY)
def test_several_calls_of_a_turn_are_read_in_order(parser: str) -> None:
    assert kinds(parser, MANY[parser]) == ["a", "b"]


@pytest.mark.parametrize(("parser", "text", "expected"), BROKEN)
def test_what_is_broken_is_told_by_kind_and_what_follows_is_still_read(
    parser: str, text: str, expected: list[str]
) -> None:
    turn = parse_turn(PARSERS[parser], text)
    assert kinds(parser, text) == expected
    assert all(call.hint and len(call.hint) < 200 for call in turn.calls if isinstance(call, BadCall))
    assert sum(call.num_chars for call in turn.calls if isinstance(call, BadCall)) <= len(text)


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("3", {"type": "integer"}, 3),
        ("3", {"type": "string"}, "3"),
        ("3", {"type": ["string", "null"]}, "3"),
        ("3", {}, "3"),
        ("[1, {}]", {"type": "array"}, [1, {}]),
        ("True", {"type": "boolean"}, True),
        ("None", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, None),
        ("three", {"type": "integer"}, "three"),
    ],
)
def test_text_gets_the_type_that_the_tools_schema_has(text: str, schema: dict[str, Json], value: Json) -> None:
    call = ToolCall("find", {"x": text, "unknown": "1"}, is_untyped=True)
    of: dict[str, Json] = {"name": "find", "parameters": {"properties": {"x": schema}}}
    expected = ToolCall("find", {"x": value, "unknown": "1"})
    assert typed(call, {"type": "function", "function": of}) == typed(call, of) == expected
    assert typed(expected, {}) == expected


def test_half_a_surrogate_in_an_argument_becomes_a_character_that_can_be_encoded() -> None:
    (call,) = parse_turn(PARSERS["hermes"], WRITTEN["hermes"]("find", {"q": "\ud800"})).calls
    assert call == ToolCall("find", {"q": "\ufffd"})


@pytest.mark.parametrize(
    ("family", "parser"),
    [("chatml", "hermes"), ("llama3", "llama3_json"), ("starter", "hermes"), ("gpt_oss", "harmony")],
)
def test_auto_takes_the_form_that_a_template_shows(family: str, parser: str) -> None:
    name, found = find_parser("auto", FAMILIES[family][0])
    assert (name, found) == (parser, PARSERS[parser])
    assert find_parser("pythonic", FAMILIES[family][0]) == ("pythonic", PARSERS["pythonic"])


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("<tool_call>\n[TOOL_CALLS]", "several forms (hermes, mistral)"),
        ("<tool_call>\n<arg_key>", "a form that is not known"),
    ],
)
def test_auto_refuses_a_template_that_leaves_the_form_open(template: str, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)) as caught:
        find_parser("auto", template)
    assert "rollout.tools.parser" in str(caught.value)
