"""Turns in pieces: no cut between them changes anything, and a long one is not read again for each of them."""

import codecs
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.envs.tools.parsers import PARSERS, ParsedTurn, ToolCall, TurnReader, parse_turn, typed
from asyncrl.envs.tools.parsers.base import MAX_ITEMS, Taken, ToolCallParser
from tests.support.written_calls import BROKEN, MANY, TRICKY, WRITTEN


class CountsWork:
    """A parser that counts the characters it was given."""

    def __init__(self, parser: ToolCallParser) -> None:
        self.parser, self.num_chars = parser, 0
        self.may_complete = parser.may_complete

    def is_shown_by(self, template: str) -> bool:
        return self.parser.is_shown_by(template)

    def take(self, rest: str, *, is_start: bool, is_end: bool) -> Taken | None:
        self.num_chars += len(rest)
        return self.parser.take(rest, is_start=is_start, is_end=is_end)


LONG = [
    ("hermes", '<tool_call>{"a": "' + "</tool_call>" * 2000),
    ("hermes", '<tool_call>{"' * 2000),
    ("qwen3_coder", "<tool_call>" + "</function>   " * 2000),
    ("llama3_json", '<|python_tag|>{"name": "a", "parameters": {}};' * 500),
    ("mistral", "[TOOL_CALLS][" + '{"name": "a", "arguments": {}},' * 1000),
    ("pythonic", "[" + "a(),b(" * 4000),
    ("harmony", 'to=functions.a<|message|>{"' + "}>" * 10_000),
]


@pytest.mark.parametrize(("parser", "text"), LONG)
def test_a_long_call_is_not_read_again_for_each_of_its_pieces(parser: str, text: str) -> None:
    work = CountsWork(PARSERS[parser])
    reader = TurnReader(work)
    for start in range(0, len(text), 4):
        reader.feed(text[start : start + 4])
    reader.close()
    assert work.num_chars < 120 * len(text), "thousands of pieces, some looks at the whole"


@pytest.mark.parametrize("parser", PARSERS)
def test_a_turn_made_of_broken_calls_costs_bounded_work(parser: str) -> None:
    for text in (
        '<tool_call>{"' * 20_000,
        "<tool_call></tool_call>" * 5000,
        "[TOOL_CALLS]" * 5000,
        "to=functions." * 5000,
    ):
        work = CountsWork(PARSERS[parser])
        assert len(parse_turn(work, text).calls) <= MAX_ITEMS
        assert work.num_chars <= 2 * MAX_ITEMS * len(text)


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
