"""Parsers of tool calls: each form is read, what is broken is named, and no cut between pieces changes anything."""

import codecs
import json
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.config import ToolsConfig
from asyncrl.data.values import Json
from asyncrl.envs.tools.parsers import (
    PARSERS,
    BadCall,
    ParsedTurn,
    ToolCall,
    TurnReader,
    find_parser,
    parse_turn,
    typed,
)
from asyncrl.envs.tools.parsers.base import MAX_ITEMS
from asyncrl.errors import ConfigError
from tests.support.chat_models import FAMILIES

TRICKY = {
    "q": 'a "quoted" </tool_call> <tool_call> [TOOL_CALLS] ] } ; é \u2028 \\',
    "n": -1.5,
    "l": [{"k": None}, True],
}
WRITTEN = {
    "hermes": lambda name, arguments: (
        f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
    ),
    "qwen": lambda name, arguments: (
        f'<tool_call>{{"name": "{name}", "arguments": {json.dumps(arguments)}}}</tool_call>'
    ),
    "qwen3_coder": lambda name, arguments: (
        f"<tool_call>\n<function={name}>\n"
        + "".join(
            f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
            for key, value in arguments.items()
        )
        + "</function>\n</tool_call>"
    ),
    "llama3_json": lambda name, arguments: f'{{"name": "{name}", "parameters": {json.dumps(arguments)}}}',
    "mistral": lambda name, arguments: f'[TOOL_CALLS] [{{"name": "{name}", "arguments": {json.dumps(arguments)}}}]',
    "pythonic": lambda name, arguments: (
        f"[{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})]"
    ),
    "harmony": lambda name, arguments: (
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{json.dumps(arguments)}<|call|>"
    ),
}
"""How a model writes one call in each form."""


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


MANY = {
    "hermes": f"1 {WRITTEN['hermes']('a', {})} 2 {WRITTEN['hermes']('b', {})} 3",
    "llama3_json": '<|python_tag|>{"name": "a", "parameters": {}}; {"name": "b", "arguments": {}}',
    "mistral": "[TOOL_CALLS]a[ARGS]{}[TOOL_CALLS]b[CALL_ID]123456789[ARGS]{}",
    "pythonic": "<|python_start|>[a(), b()]<|python_end|>",
    "harmony": "<|channel|>analysis<|message|>to=functions. is how<|end|><|start|>assistant to=functions.a<|channel|>"
    "commentary json<|message|>{}<|call|><|start|>assistant<|channel|>commentary to=functions.b<|message|>{}",
}


@pytest.mark.parametrize("parser", MANY)
def test_several_calls_of_a_turn_are_read_in_order(parser: str) -> None:
    assert kinds(parser, MANY[parser]) == ["a", "b"]


BROKEN = [
    ("hermes", '<tool_call>{"name": "a", "arguments": {}}', ["unclosed"]),
    ("hermes", "<tool_call></tool_call>", ["malformed"]),
    ("hermes", '<tool_call>{"name": "a", "arguments": {}}}</tool_call>', ["malformed"]),
    (
        "hermes",
        '<tool_call>{"name": "a", "arguments": {"x": "1}</tool_call>' + WRITTEN["hermes"]("b", {}),
        ["malformed", "b"],
    ),
    ("hermes", '<tool_call>[{"name": "a", "arguments": {}}]</tool_call>', ["malformed"]),
    ("hermes", '<tool_call>{"name": "a", "arguments": {"x": NaN}}</tool_call>', ["malformed"]),
    ("hermes", '<tool_call>{"name": "a", "arguments": {"x": %s}}</tool_call>' % ("[" * 100_000), ["malformed"]),
    ("hermes", '<tool_call>{"name": "a", "arguments": {"x": %s}}</tool_call>' % ("9" * 10_000), ["malformed"]),
    ("hermes", '<tool_call>{"name": 3, "arguments": {}}</tool_call>', ["missing name"]),
    *[
        ("hermes", f'<tool_call>{{"name": "a", "arguments": {value}}}</tool_call>', ["arguments not an object"])
        for value in ("null", "[1]", "5", '"x"', "true", '"{} {}"')  # B141
    ],
    ("qwen3_coder", "<tool_call>\n<function=a>\n<parameter=x>\n1\n</parameter>", ["unclosed"]),
    ("qwen3_coder", "<tool_call>\n<function=a>\nx=1\n</function>\n</tool_call>", ["malformed"]),
    ("qwen3_coder", "<tool_call>\n{}\n</tool_call>" + WRITTEN["qwen3_coder"]("b", {}), ["malformed", "b"]),
    ("qwen3_coder", "<tool_call></function></tool_call>", ["missing name"]),
    ("llama3_json", '{"name": "a", "parameters": {}', ["unclosed"]),
    ("llama3_json", "{\"name\": 'a'}", ["malformed"]),
    ("llama3_json", "<|python_tag|>search.call(query=1)", ["malformed"]),
    ("llama3_json", '<|python_tag|>{"name": "a"}', ["missing arguments"]),
    ("llama3_json", '{"name": "a", "parameters": {}}; {"name": "b"', ["a", "unclosed"]),
    ("llama3_json", "<|python_tag|>", ["malformed"]),
    ("mistral", "[TOOL_CALLS]", ["malformed"]),
    ("mistral", "[TOOL_CALLS][]", ["malformed"]),
    ("mistral", '[TOOL_CALLS][{"name": "a", "arguments": {}}', ["unclosed"]),
    ("mistral", '[TOOL_CALLS][{"name": "a", "arguments": {}}, 3, {}]', ["a", "malformed", "missing name"]),
    ("mistral", "[TOOL_CALLS]a[ARGS]{'x': 1}[TOOL_CALLS]b{}", ["malformed", "b"]),
    ("mistral", '[TOOL_CALLS]a[ARGS]{"x": ', ["unclosed"]),
    ("mistral", "[TOOL_CALLS] I would rather not", ["malformed"]),
    ("harmony", 'to=functions.a<|message|>{"x": ', ["unclosed"]),
    ("harmony", "to=functions.a<|message|>x<|call|>to=functions.b<|message|>{}", ["malformed", "b"]),
    ("harmony", "to=functions.a<|message|>[1]<|call|>", ["arguments not an object"]),
    ("pythonic", "[a(x=1), b(", ["unclosed"]),
    ("pythonic", "[a(1)]", ["malformed"]),
    ("pythonic", "[a(**{'x': 1})]", ["malformed"]),
    ("pythonic", "[a(x=open('f'))]", ["malformed"]),
    ("pythonic", "[a(x=b'1')]", ["malformed"]),
    ("pythonic", "[a(x={1: 2})]", ["malformed"]),
    ("pythonic", "[a(x=1) for a in b]", ["malformed"]),
    ("pythonic", "[a(), b()()]", ["a", "missing name"]),
    ("pythonic", "[a(x=%s)]" % ("[" * 5000), ["malformed"]),
]


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


def test_a_turn_made_of_broken_calls_costs_bounded_work() -> None:
    turn = parse_turn(PARSERS["hermes"], '<tool_call>{"' * 20_000)
    assert len(turn.calls) <= MAX_ITEMS


def read(parser: str, pieces: list[str], *, in_thought: bool = False) -> ParsedTurn:
    """What a reader makes of pieces, joined as parse_turn joins it."""
    reader = TurnReader(PARSERS[parser], in_thought=in_thought)
    items = [item for piece in pieces for item in reader.feed(piece)]
    items += reader.close()
    text = "".join(item for item in items if isinstance(item, str))
    return ParsedTurn(text, tuple(item for item in items if not isinstance(item, str)))


FRAGMENTS = [
    *MANY.values(),
    *(text for _, text, _ in BROKEN if len(text) < 300),
    *(write("find", TRICKY) for write in WRITTEN.values()),
    *[
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "<|python_tag|>",
        "<|python_start|>",
        "[ARGS]",
    ],
    *[
        "{",
        "}",
        "[",
        "]",
        '"',
        ";",
        " ",
        "\n",
        "é❤",
        "text",
        '{"name": "a", "arguments": {"x": "',
        "\\u12",
        "tru",
        "-1",
    ],
]
turns = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=8), max_size=5).map("".join)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(PARSERS)), turns, st.lists(st.integers(0, 400), max_size=8), st.booleans())
def test_a_turn_in_pieces_is_read_as_the_whole(parser: str, text: str, cuts: list[int], in_thought: bool) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(places)]
    whole = parse_turn(PARSERS[parser], text, in_thought=in_thought)
    assert read(parser, pieces, in_thought=in_thought) == whole
    assert read(parser, list(text), in_thought=in_thought) == whole


@pytest.mark.parametrize("parser", WRITTEN)
def test_a_call_cut_at_any_byte_is_read_as_the_whole(parser: str) -> None:
    text = WRITTEN[parser]("find", {"q": "é❤"}).replace("\\u00e9\\u2764", "é❤")
    data, whole = text.encode(), parse_turn(PARSERS[parser], text)
    assert [typed(call, {}) for call in whole.calls if isinstance(call, ToolCall)] == [ToolCall("find", {"q": "é❤"})]
    for cut in range(len(data) + 1):
        decoder = codecs.getincrementaldecoder("utf-8")()
        pieces = [decoder.decode(data[:cut]), decoder.decode(data[cut:], final=True)]
        assert read(parser, pieces) == whole


def test_text_and_calls_come_as_soon_as_they_are_certain() -> None:
    reader = TurnReader(PARSERS["hermes"])
    assert reader.feed("Let me see <tool") == ("Let me see ",)
    assert reader.feed('_call>{"name": "a", "arguments": {}}</tool_call') == ()
    assert reader.feed("> and") == (ToolCall("a", {}), " and")
    assert reader.close() == ()


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
