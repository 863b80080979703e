"""Every protocol of the gateway: what it reads is what was meant, and what it shows is what was sampled."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncrl.rollout.gateway.conversation import (
    ErrorType,
    ProtocolError,
    ToolCall,
    ToolCallPiece,
    TurnAnswer,
    TurnDelta,
    TurnRequest,
    TurnStart,
)
from asyncrl.rollout.gateway.messages import key_of
from asyncrl.rollout.gateway.translators import TRANSLATORS
from tests.support.protocol_forms import FORMS, Form, events_of

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)
arguments = st.dictionaries(words, values, max_size=3).map(lambda value: json.dumps(value, ensure_ascii=False))
calls = st.lists(st.builds(ToolCall, names, names, arguments), max_size=3, unique_by=lambda call: call.id)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Messages in the neutral form that a policy may be asked to answer."""
    messages: list[dict[str, Any]] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(words.filter(bool))})
    messages.append({"role": "user", "content": draw(words)})
    for _ in range(draw(st.integers(0, 3))):
        asked, thought = draw(calls), draw(words)
        message: dict[str, Any] = {"role": "assistant", "content": draw(words)}
        if thought:
            message["reasoning_content"] = thought
        if asked:
            message["tool_calls"] = [call.to_json() for call in asked]
        messages.append(message)
        messages += [{"role": "tool", "tool_call_id": call.id, "content": draw(words)} for call in asked]
        if not asked or draw(st.booleans()):
            messages.append({"role": "user", "content": draw(words)})
    return messages


@st.composite
def answers(draw: st.DrawFn) -> TurnAnswer:
    """Answers of every kind: with thoughts, text and calls, each maybe none."""
    asked = tuple(draw(calls))
    finish = "tool_calls" if asked else draw(st.sampled_from(["stop", "length"]))
    ids = tuple(draw(st.lists(st.integers(0, 99), min_size=1, max_size=4)))
    return TurnAnswer(
        id=draw(st.from_regex(r"[a-z0-9]{4}", fullmatch=True)),
        model="policy",
        weight_version="1.7",
        created_s=draw(st.integers(0, 2**33)),
        text=draw(words),
        reasoning=draw(st.none() | words),
        tool_calls=asked,
        finish_reason=finish,  # type: ignore[arg-type]  # of the literals above
        token_ids=ids,
        logprobs=tuple(-0.25 for _ in ids),
        prompt_tokens=draw(st.integers(1, 99)),
        token_texts=tuple("\ufffd" if one % 7 == 0 else chr(97 + one) for one in ids),
        stop_text=draw(st.none() | st.just("END")) if finish == "stop" else None,
    )


def deltas_of(answer: TurnAnswer, cuts: st.DataObject) -> list[TurnDelta]:
    """An answer in pieces, cut at random."""

    def pieces(text: str) -> Sequence[str]:
        places = sorted(cuts.draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=3), "cuts"))
        return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True) if text[a:b]]

    deltas = [TurnDelta(start=TurnStart(answer.id, answer.model, answer.created_s, answer.prompt_tokens))]
    deltas += [TurnDelta(reasoning=piece) for piece in pieces(answer.reasoning or "")]
    deltas += [TurnDelta(text=piece) for piece in pieces(answer.text)]
    for index, call in enumerate(answer.tool_calls):
        first, *rest = pieces(call.arguments)
        deltas.append(TurnDelta(tool_call=ToolCallPiece(index, call.id, call.name, first)))
        deltas += [TurnDelta(tool_call=ToolCallPiece(index, arguments=piece)) for piece in rest]
    return [*deltas, TurnDelta(answer=answer)]


async def given_out(deltas: Sequence[TurnDelta], error: ProtocolError | None = None) -> AsyncIterator[TurnDelta]:
    for delta in deltas:
        yield delta
    if error is not None:
        raise error


def streamed(form: Form, deltas: AsyncIterator[TurnDelta], request: TurnRequest) -> bytes:
    async def collect() -> bytes:
        return b"".join([piece async for piece in form.translator.stream(deltas, request)])

    return asyncio.run(collect())


@pytest.fixture(params=sorted(FORMS))
def form(request: pytest.FixtureRequest) -> Form:
    found: Form = FORMS[request.param]
    return found


TOOLS = [{"type": "function", "function": {"name": "calc", "description": "sums", "parameters": {"type": "object"}}}]


def test_every_translator_is_held_to_this() -> None:
    assert {form.translator.path for form in FORMS.values()} == {translator.path for translator in TRANSLATORS}


# The first draw on a new machine makes a table of all characters, which takes seconds.
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(messages=conversations())
def test_messages_of_any_kind_are_read_as_they_were_written(messages: list[dict[str, Any]]) -> None:
    for name, form in FORMS.items():
        read = form.translator.parse(form.body(messages, TOOLS))
        assert [dict(message) for message in read.messages] == messages, name
        assert list(read.tools) == TOOLS, name


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(answer=answers(), cuts=st.data())
def test_the_pieces_of_a_stream_join_to_the_whole_answer(answer: TurnAnswer, cuts: st.DataObject) -> None:
    deltas = deltas_of(answer, cuts)
    for name, form in FORMS.items():
        body = form.body([{"role": "user", "content": "q"}], ())
        if name == "openai_chat":
            body |= {"logprobs": True, "stream_options": {"include_usage": True}}
        request = form.translator.parse({**body, "stream": True})
        data = streamed(form, given_out(deltas), request)
        assert form.joined(events_of(data)) == form.translator.render(answer, request), name


@given(answer=answers())
def test_an_answer_that_is_sent_back_is_the_one_that_was_sampled(answer: TurnAnswer) -> None:
    sampled: dict[str, Any] = {"role": "assistant", "content": answer.text, "reasoning_content": answer.reasoning}
    if answer.tool_calls:
        sampled["tool_calls"] = [call.to_json() for call in answer.tool_calls]
    for name, form in FORMS.items():
        body = form.body([{"role": "user", "content": "q"}], ())
        shown: Any = form.translator.render(answer, form.translator.parse(body))
        again = form.translator.parse(form.extended(body, shown, [{"role": "user", "content": "r"}]))
        assert len(again.messages) == 3, name
        assert key_of(again.messages[1]).repeats(key_of(sampled)), name


@pytest.mark.parametrize(
    ("type", "status"),
    [
        ("invalid_request", 400),
        ("authentication", 401),
        ("not_found", 404),
        ("conflict", 409),
        ("too_large", 413),
        ("rate_limit", 429),
        ("server", 500),
        ("server", 503),
        ("server", 504),
    ],
)
def test_an_error_keeps_its_words_in_every_form(form: Form, type: ErrorType, status: int) -> None:
    body: Any = form.translator.render_error(ProtocolError(status, type, "why and what to do"))
    assert body["error"]["message"] == "why and what to do"
    assert isinstance(body["error"]["type"], str)


@pytest.mark.parametrize("num_deltas", [0, 1, 2])
def test_an_error_in_a_stream_is_its_last_event(form: Form, num_deltas: int) -> None:
    deltas = [TurnDelta(start=TurnStart("a1", "policy", 5, 3)), TurnDelta(text="half")][:num_deltas]
    request = form.translator.parse({**form.body([{"role": "user", "content": "q"}], ()), "stream": True})
    data = streamed(form, given_out(deltas, ProtocolError(503, "server", "no server is left")), request)
    last = events_of(data)[-1]
    assert "no server is left" in json.dumps(last["response"]["error"] if "response" in last else last["error"])


def test_an_error_that_is_a_bug_is_not_hidden(form: Form) -> None:
    async def broken() -> AsyncIterator[TurnDelta]:
        yield TurnDelta(start=TurnStart("a1", "policy", 5, 3))
        raise ZeroDivisionError("a bug")

    request = form.translator.parse({**form.body([{"role": "user", "content": "q"}], ()), "stream": True})
    with pytest.raises(ZeroDivisionError):
        streamed(form, broken(), request)


@pytest.mark.parametrize(
    "change",
    [
        {"model": None},
        {"model": 3},
        {"temperature": "hot"},
        {"temperature": -1},
        {"top_p": 0},
        {"stream": "yes"},
        {"tools": {}},
        {"tools": [{"type": "web_search_preview"}]},
        {"tool_choice": "sometimes"},
        {"a_field_to_come": 1},
    ],
    ids=str,
)
def test_a_field_that_is_wrong_is_named(form: Form, change: dict[str, Any]) -> None:
    body = {**form.body([{"role": "user", "content": "q"}], ()), **change}
    with pytest.raises(ProtocolError) as caught:
        form.translator.parse(body)
    assert caught.value.status == 400
    assert next(iter(change)).split(".")[0] in caught.value.message


@pytest.mark.parametrize(
    "conversation", [None, [], "x" * 0, 3, [3], [{"role": "robot", "content": "x"}], [{}]], ids=str
)
def test_a_conversation_that_is_none_is_named(form: Form, conversation: Any) -> None:
    body = {**form.body([{"role": "user", "content": "q"}], ()), form.conversation: conversation}
    if form.conversation == "input" and conversation == "":
        return  # a text is a conversation there, also an empty one
    with pytest.raises(ProtocolError) as caught:
        form.translator.parse(body)
    assert form.conversation in caught.value.message


def test_the_policys_answer_cannot_be_begun_for_it(form: Form) -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "Sure, "}]
    with pytest.raises(ProtocolError, match="cannot be begun for the policy"):
        form.translator.parse(form.body(messages, ()))


@settings(max_examples=40)
@given(noise=st.recursive(st.none() | st.integers() | words, lambda x: st.lists(x) | st.dictionaries(words, x)))
def test_no_body_raises_anything_but_a_protocol_error(noise: Any) -> None:
    for form in FORMS.values():
        for name in ("messages", "input", "tools", "system", "tool_choice", "stop", "text", "stream_options", "model"):
            with suppress(ProtocolError):
                form.translator.parse({**form.body([{"role": "user", "content": "q"}], ()), name: noise})
