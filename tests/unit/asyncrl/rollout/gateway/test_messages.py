"""Messages that say the same have one key, and no others have."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.rollout.gateway.messages import for_template, key_of, keys_of, num_shared

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1, "b": [2.0]}'}}


def assistant(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "hello", **fields}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (assistant(), assistant(content=" hello\n")),
        (assistant(content=None, tool_calls=[CALL]), assistant(content="", tool_calls=[{**CALL, "id": "2"}])),
        (
            assistant(tool_calls=[CALL]),
            assistant(tool_calls=[{**CALL, "function": {"name": "f", "arguments": '{"b":[2.0],"a":1}'}}]),
        ),
        ({"role": "tool", "tool_call_id": "1", "content": "x"}, {"role": "tool", "tool_call_id": "2", "content": "x"}),
        (assistant(), assistant(reasoning_content="why", name=None)),
    ],
)
def test_ids_order_of_arguments_and_white_space_around_an_answer_do_not_count(one: Any, other: Any) -> None:
    assert key_of(one).said == key_of(other).said


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (assistant(), assistant(content="hello.")),
        (assistant(), {"role": "user", "content": "hello"}),
        ({"role": "user", "content": "hello"}, {"role": "user", "content": "hello "}),
        (assistant(tool_calls=[CALL]), assistant()),
        (assistant(tool_calls=[CALL]), assistant(tool_calls=[CALL, CALL])),
        (
            assistant(tool_calls=[CALL]),
            assistant(tool_calls=[{**CALL, "function": {"name": "f", "arguments": '{"a": 2}'}}]),
        ),
        ({"role": "user", "content": "a", "name": "x"}, {"role": "user", "content": "a", "name": "y"}),
    ],
)
def test_what_is_said_otherwise_has_another_key(one: Any, other: Any) -> None:
    assert key_of(one).said != key_of(other).said


def test_reasoning_may_be_left_out_but_not_changed() -> None:
    kept, left_out, changed = (key_of(assistant(reasoning_content=text)) for text in ("why", None, "because"))
    assert kept.repeats(kept)
    assert left_out.repeats(kept)
    assert not changed.repeats(kept)


def test_tools_are_part_of_a_conversation() -> None:
    messages = [{"role": "user", "content": "a"}]
    one, other = keys_of(messages, [{"type": "function"}]), keys_of(messages, [])
    assert num_shared(one, other) == 0
    assert num_shared(one, one) == 2


scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=4)
values = scalars | st.lists(scalars, max_size=2) | st.dictionaries(st.text(max_size=2), scalars, max_size=2)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(max_size=3), values, max_size=4))
def test_arguments_that_are_the_same_value_have_one_key_however_they_are_written(arguments: dict[str, Any]) -> None:
    def call(text: str) -> dict[str, Any]:
        return assistant(tool_calls=[{"id": "1", "type": "function", "function": {"name": "f", "arguments": text}}])

    pretty = json.dumps(arguments, indent=2, ensure_ascii=False)
    assert key_of(call(json.dumps(arguments, sort_keys=True))) == key_of(call(pretty))


def test_templates_get_arguments_as_objects_and_the_names_of_tools_with_their_answers() -> None:
    messages = [
        {"role": "user", "content": "q"},
        assistant(content=None, tool_calls=[CALL]),
        {"role": "tool", "tool_call_id": "1", "content": "x", "name": None},
    ]
    first, second, third = for_template(messages)
    assert first == messages[0]
    assert second["content"] == ""
    assert second["tool_calls"] == [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1, "b": [2.0]}}}
    ]
    assert third == {"role": "tool", "tool_call_id": "1", "content": "x", "name": "f"}
    assert for_template(messages, 2) == [third]
