"""An answer read in pieces is the answer read at once: its text, its reasoning, its calls, and where it stops."""

import json
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.envs.tools.parsers import PARSERS
from asyncrl.rollout.gateway.answer_reader import CALL_ID_CHARS, AnswerReader
from asyncrl.rollout.gateway.conversation import TurnDelta
from asyncrl.rollout.gateway.turn_text import TurnText
from tests.support.ascii_chat import END, AsciiChat, encode

CALL = '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>'


def read(
    text: str, cuts: list[int], *, stops: tuple[str, ...] = (), in_thought: bool = False, parses: bool = True
) -> tuple[AnswerReader, TurnText, list[TurnDelta], int, Counter[str]]:
    """The answer read in pieces that end at `cuts`; the number of ids that are kept."""
    counts: Counter[str] = Counter()
    shown: list[TurnDelta] = []
    reader = AnswerReader(
        PARSERS["hermes"] if parses else None, splits_thoughts=True, in_thought=in_thought, counts=counts
    )
    turn = TurnText(AsciiChat().decode, stops, reader, shown.append)
    ids, num_kept = [*encode(text), END], 0
    for start, end in pairwise(sorted({0, len(ids), *(cut % len(ids) for cut in cuts)})):
        num_kept += turn.push(ids[start:end])
        if turn.stop_text is not None:
            break
    turn.finish()
    return reader, turn, shown, num_kept, counts


def outcome(reader: AnswerReader) -> tuple[object, ...]:
    return reader.reasoning, reader.text, [(call.name, call.arguments) for call in reader.tool_calls]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hello \n", ("", "hello \n", [])),
        ("<think>well</think>\n\nhello", ("well", "hello", [])),
        (f"I call.\n{CALL}", ("", "I call.", [("f", '{"a": "</tool_call>"}')])),
        (f"{CALL}\n{CALL}", ("", "", [("f", '{"a": "</tool_call>"}')] * 2)),
        (f"<think>{CALL}</think>{CALL} ", (CALL, "", [("f", '{"a": "</tool_call>"}')])),
        ("a <think>b</think>", ("", "a <think>b</think>", [])),
        ("<think>never closed", ("never closed", "", [])),
        ("<tool_call>{}</tool_call>x", ("", "<tool_call>{}</tool_call>x", [])),
        ("<tool_call>{", ("", "<tool_call>{", [])),
        ("<thin", ("", "<thin", [])),
        ("", ("", "", [])),
    ],
)
def test_an_answer_is_taken_apart(text: str, expected: tuple[object, ...]) -> None:
    reader, *_ = read(text, [])
    assert outcome(reader) == expected


def test_a_malformed_call_stays_text_and_is_counted() -> None:
    *_, counts = read("<tool_call>{}</tool_call><tool_call>{", [])
    assert counts == {"tool_calls_missing_name": 1, "tool_calls_unclosed": 1}


def test_without_tools_a_call_is_text() -> None:
    reader, *_ = read(CALL, [], parses=False)
    assert outcome(reader) == ("", CALL, [])


def test_a_thought_that_the_prompt_opened_is_one() -> None:
    reader, *_ = read("well</think>hello", [], in_thought=True)
    assert outcome(reader) == ("well", "hello", [])


def test_ids_of_calls_are_as_long_as_mistrals_templates_want_them() -> None:
    reader, *_ = read(f"{CALL}{CALL}", [])
    ids = [call.id for call in reader.tool_calls]
    assert len(set(ids)) == 2
    assert all(len(id) == CALL_ID_CHARS and id.isalnum() for id in ids)


pieces = st.sampled_from(
    ["<think>", "</think>", CALL, "<tool_call>", "</tool_call>", '{"name": "f"}', " ", "\n", "STOP", "ST", "hello", "<"]
)


@settings(max_examples=80, deadline=None)
@given(st.lists(pieces, max_size=8).map("".join), st.lists(st.integers(0, 300), max_size=8), st.booleans())
def test_cuts_change_nothing_and_what_is_shown_joins_to_the_answer(text: str, cuts: list[int], stops: bool) -> None:
    texts = ("STOP", "</think><") if stops else ()
    whole, turn, _, num_kept, _ = read(text, [], stops=texts)
    reader, in_pieces, shown, num_kept_of_pieces, _ = read(text, cuts, stops=texts)
    assert outcome(reader) == outcome(whole)
    assert (in_pieces.stop_text, num_kept_of_pieces) == (turn.stop_text, num_kept)
    assert "".join(piece.reasoning for piece in shown) == reader.reasoning
    assert "".join(piece.text for piece in shown) == reader.text
    calls = [piece.tool_call for piece in shown if piece.tool_call is not None]
    assert [(call.name, call.arguments) for call in calls] == [(c.name, c.arguments) for c in reader.tool_calls]
    assert all(isinstance(json.loads(call.arguments), dict) for call in calls)


def test_an_answer_ends_with_the_token_that_completes_its_stop_text() -> None:
    reader, turn, _, num_kept, _ = read("one STOP two", [6], stops=("STOP", "two"))
    assert (reader.text, turn.stop_text, num_kept) == ("one ", "STOP", len("one STOP"))
