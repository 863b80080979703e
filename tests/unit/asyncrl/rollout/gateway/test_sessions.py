"""Turns of sessions: exact tokens, forks into rows of their own, and nothing left of a turn without an answer."""

import asyncio
from collections import deque
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.inference.errors import RequestRefused, ServerUnavailable
from asyncrl.rollout.gateway.conversation import AskedSampling, ProtocolError, TurnRequest
from asyncrl.rollout.gateway.session import Session, SessionEnd
from asyncrl.rollout.gateway.session_turns import Repeat
from buffer import Row
from buffer.versions import label
from tests.support.ascii_chat import AsciiChat, encode
from tests.support.event_loop import in_event_loop
from tests.support.gateway_parts import LIMITS, SEARCH, SETTINGS, GatewayParts, said, user
from tests.support.scripted_fleet import VERSION, ScriptedFleet

CALL = '<tool_call>{"name": "search", "arguments": {"q": "x"}}</tool_call>'


def sampled_texts(row: Row) -> list[str]:
    """The texts of the runs of sampled tokens."""
    texts, chat = [], AsciiChat()
    for first in np.flatnonzero(np.diff(row.mask, prepend=False) & row.mask):
        end = int(first) + int(np.argmin([*row.mask[first:], False]))
        texts.append(chat.decode(row.token_ids[first:end].tolist()))
    return texts


def check_row(session: Session, number: int, texts: list[str]) -> None:
    row = session.trajectory_rows()[number]
    assert sampled_texts(row) == texts
    assert (row.logprobs[row.mask] < 0).all()


@in_event_loop
async def test_a_conversation_that_grows_is_one_row_of_the_tokens_that_were_sampled() -> None:
    chat = AsciiChat()
    parts = GatewayParts(chat=chat, fleet=ScriptedFleet(script=deque(["one ", CALL, "three"])))
    session = parts.session()
    messages = [user("a")]
    answers = []
    for more in (user("b"), {"role": "tool", "tool_call_id": "x", "content": "found"}, None):
        answers.append(await parts.ask(session, messages, [SEARCH]))
        messages += [said(answers[-1]), *([more] if more is not None else [])]
    check_row(session, 0, ["one ", CALL, "three"])
    assert [answer.finish_reason for answer in answers] == ["stop", "tool_calls", "stop"]
    assert answers[0].token_ids == (*encode("one "), 2)
    assert answers[1].tool_calls[0].name == "search"
    assert chat.num_renders == 1, "later turns append"
    assert (session.num_turns, len(session.rows), dict(session.forks)) == (3, 1, {})
    asked = [ids for ids, _ in parts.fleet.asked]
    row = session.rows[0].row.token_ids.tolist()
    assert all(row[: len(ids)] == ids for ids in asked), "each request is the beginning of the row"
    assert len({sampling.seed for _, sampling in parts.fleet.asked}) == 1


@in_event_loop
async def test_an_answer_names_the_newest_version_of_its_own_tokens() -> None:
    parts = GatewayParts(fleet=ScriptedFleet(cut_after=1))
    session = parts.session()
    first = await parts.ask(session, [user("a")])
    parts.fleet.version = VERSION  # of a server that is behind
    second = await parts.ask(session, [user("a"), said(first), user("b")])
    assert [first.weight_version, second.weight_version] == [label(VERSION + 1), label(VERSION)]
    assert [span.version for span in session.trajectory_rows()[0].spans] == [VERSION, VERSION + 1, VERSION]


@in_event_loop
async def test_changed_contexts_become_rows_of_their_own_and_nothing_is_trained_twice() -> None:
    """Of one trajectory, which counts once in its group: so do sub-agents (B135)."""
    parts = GatewayParts()
    session = parts.session()
    first = await parts.ask(session, [user("a")])
    grown = [user("a"), said(first), user("b")]
    parts.fleet.script.extend(["second", "again", "edit", "compact", "helper"])
    await parts.ask(session, grown)
    await parts.ask(session, grown)  # asked again
    await parts.ask(session, [user("a"), said(first), user("c")])  # what came later was changed
    await parts.ask(session, [user("a"), user("summary")])
    await parts.ask(session, [user("sub task")], [SEARCH])
    assert dict(session.forks) == {"retry": 1, "edited": 1, "rewritten": 1, "separate": 1}
    for number, texts in enumerate([["ok", "second"], ["again"], ["edit"], ["compact"], ["helper"]]):
        check_row(session, number, texts)
    rows = session.trajectory_rows()
    shared = len(encode("u:a")) + 2 + len(encode("a:")) + 1 + len(encode("ok")) + 1
    for row in rows[1:3]:
        assert row.token_ids[:shared].tolist() == rows[0].token_ids[:shared].tolist(), (
            "tokens are shared, not read anew"
        )
    seeds = [sampling.seed for _, sampling in parts.fleet.asked]
    assert len(set(seeds)) == 5, "a row has a seed of its own"
    assert sum(row.num_sampled for row in rows) == sum(
        len(text) + 1 for text in ("ok", "second", "again", "edit")
    ) + sum(len(text) + 1 for text in ("compact", "helper"))


@in_event_loop
async def test_a_row_is_not_gone_on_from_if_its_answer_was_changed() -> None:
    parts = GatewayParts()
    session = parts.session()
    first = await parts.ask(session, [user("a")])
    await parts.ask(session, [user("a"), {**said(first), "content": "other words"}, user("b")])
    assert dict(session.forks) == {"rewritten": 1}
    check_row(session, 1, ["ok"])
    assert AsciiChat().decode(session.rows[1].row.token_ids.tolist()) != ""


@in_event_loop
async def test_a_template_that_cannot_go_on_after_an_answer_begins_a_new_row() -> None:
    parts = GatewayParts(chat=AsciiChat(refuses=["system"]))
    session = parts.session()
    first = await parts.ask(session, [user("a")])
    await parts.ask(session, [user("a"), said(first), {"role": "system", "content": "b"}])
    assert dict(session.forks) == {"rewritten": 1}
    assert parts.counts["rows_not_appendable"] == 1


@in_event_loop
async def test_turns_of_one_row_at_once_are_two_rows() -> None:
    parts = GatewayParts()
    session = parts.session()
    first = await parts.ask(session, [user("a")])
    grown = [user("a"), said(first), user("b")]
    await asyncio.gather(parts.ask(session, grown), parts.ask(session, grown))
    assert dict(session.forks) == {"parallel": 1}
    check_row(session, 0, ["ok", "ok"])
    check_row(session, 1, ["ok"])


@in_event_loop
async def test_a_repeated_request_is_one_turn_only_where_it_says_so() -> None:
    parts = GatewayParts()
    parts.fleet.hold = asyncio.Event()
    session = parts.session()
    key = Repeat("key 1", is_one=True)
    both = [asyncio.create_task(parts.ask(session, [user("a")], repeat=key)) for _ in range(2)]
    await parts.settled(lambda: len(parts.fleet.asked) == 1)
    parts.fleet.hold.set()
    one, other = await asyncio.gather(*both)
    assert one is other
    assert await parts.ask(session, [user("a")], repeat=key) is one, "also when it has its answer already"
    assert (session.num_turns, parts.counts["turns_repeated"]) == (1, 2)
    await parts.ask(session, [user("a")])
    await parts.ask(session, [user("a")], repeat=Repeat("key 2", is_one=True))
    assert session.num_turns == 3
    assert session.forks["retry"] == 2


@in_event_loop
async def test_who_leaves_last_gives_the_turn_up_and_the_session_is_as_before() -> None:
    parts = GatewayParts()
    session = parts.session()
    first = await parts.ask(session, [user("a")])
    grown, before = [user("a"), said(first), user("b")], session.rows[0]
    parts.fleet.hold = asyncio.Event()
    asking = asyncio.create_task(parts.ask(session, grown))
    await parts.settled(lambda: len(parts.fleet.asked) == 2)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await parts.settled(lambda: not session.running)
    assert session.rows == [before]
    assert (parts.fleet.num_cancelled, parts.counts["turns_without_answer"]) == (1, 1)
    parts.fleet.hold = None
    await parts.ask(session, grown)
    assert dict(session.forks) == {}, "the row was free again"
    check_row(session, 0, ["ok", "ok"])


@in_event_loop
async def test_an_answer_that_is_cut_goes_on_from_its_tokens() -> None:
    parts = GatewayParts(fleet=ScriptedFleet(default="a long answer", cut_after=5))
    session = parts.session()
    answer = await parts.ask(session, [user("a")])
    assert answer.text == "a long answer"
    check_row(session, 0, ["a long answer"])
    assert parts.counts["answers_cut"] == 1
    (row,) = session.trajectory_rows()
    assert [(span.version, span.num_tokens) for span in row.spans] == [(VERSION, 5), (VERSION + 1, 9)]
    assert answer.weight_version == label(VERSION + 1)
    await parts.ask(session, [user("a"), said(answer), user("b")])
    (row,) = session.trajectory_rows()
    assert [span.num_tokens for span in row.spans] == [5, 9 + 14], "spans of one version are one"


@in_event_loop
async def test_a_stop_text_ends_the_tokens_too_and_most_tokens_are_the_requests() -> None:
    parts = GatewayParts(fleet=ScriptedFleet(default="one STOP two"))
    session = parts.session()
    stopped = await parts.ask(session, [user("a")], stop=("STOP",))
    assert (stopped.text, stopped.stop_text, stopped.finish_reason) == ("one ", "STOP", "stop")
    assert len(stopped.token_ids) == len("one STOP")
    cut = await parts.ask(session, [user("a"), said(stopped), user("b")], max_tokens=3)
    assert (cut.text, cut.finish_reason, cut.completion_tokens) == ("one", "length", 3)
    await parts.ask(session, [user("a"), said(stopped), user("b"), said(cut), user("c")])
    check_row(session, 0, ["one STOP", "one", "one STOP two"])
    assert dict(session.forks) == {}


@pytest.mark.parametrize(
    ("error", "status"),
    [(RequestRefused("no"), 400), (ServerUnavailable("gone"), 503), (RuntimeError("a fault"), 500)],
    ids=["refused", "unavailable", "fault"],
)
@in_event_loop
async def test_what_servers_say_becomes_an_error_of_the_protocol(error: Exception, status: int) -> None:
    fleet = ScriptedFleet(error=error)
    parts = GatewayParts(fleet=fleet)
    session = parts.session()
    if status == 503:  # as often as an episode may be tried
        fleet.generate = _always(error)  # type: ignore[method-assign]  # a fleet without servers
    with pytest.raises(ProtocolError) as found:
        await parts.ask(session, [user("a")])
    assert found.value.status == status
    assert session.rows == []


def _always(error: Exception):  # type: ignore[no-untyped-def]
    async def generate(*args: object, **kwargs: object) -> None:
        raise error

    return generate


@in_event_loop
async def test_requests_that_cannot_be_answered_say_why_and_leave_nothing() -> None:
    parts = GatewayParts(context_length=40, max_rows=2)
    session = parts.session()
    cases = [
        ([user("a" * 60)], "prompt is too long"),
        ([user("a"), {"role": "assistant", "content": "b"}], "The last message is the assistant's"),
    ]
    for messages, text in cases:
        with pytest.raises(ProtocolError, match=text):
            await parts.ask(session, messages)
    await parts.ask(session, [user("a")])
    await parts.ask(session, [user("b")])
    with pytest.raises(ProtocolError, match=r"gateway\.max_rows"):
        await parts.ask(session, [user("c")])
    assert len(session.rows) == 2
    assert session.busy == frozenset()


@in_event_loop
async def test_another_temperature_is_counted_or_refused() -> None:
    parts = GatewayParts()
    await parts.ask(parts.session(), [user("a")], temperature=0.0)
    assert parts.counts["sampling_overridden"] == 1
    assert parts.fleet.asked[0][1].temperature == 1.0
    strict = GatewayParts(settings=replace(SETTINGS, refuses_other_sampling=True))
    with pytest.raises(ProtocolError, match=r"rollout\.temperature"):
        await strict.ask(strict.session(), [user("a")], temperature=0.0)


@in_event_loop
async def test_limits_of_sessions_are_told_with_what_to_do() -> None:
    limits = replace(LIMITS, max_sessions=2, max_session_bytes=1 << 15, max_turns_in_flight=1)
    parts = GatewayParts(limits=limits)
    session = parts.session()
    parts.session()
    with pytest.raises(ProtocolError, match="max_sessions") as refused:
        parts.session()
    assert (refused.value.status, refused.value.retry_after_s) == (429, 10.0)
    parts.fleet.hold = asyncio.Event()
    asking = asyncio.create_task(parts.ask(session, [user("a")]))
    await parts.settled(lambda: bool(parts.fleet.asked))
    with pytest.raises(ProtocolError, match="max_turns_in_flight"):
        await parts.ask(session, [user("b")])
    parts.fleet.hold.set()
    await asking
    parts.fleet.hold = None
    for index in range(3):
        await parts.ask(session, [user(f"{index} {'x' * 1000}")])
    with pytest.raises(ProtocolError, match="max_session_bytes") as full:
        await parts.ask(session, [user("more")])
    assert full.value.status == 413
    assert parts.sessions.num_bytes >= limits.max_session_bytes


@in_event_loop
async def test_memory_is_limited_in_all() -> None:
    parts = GatewayParts(limits=replace(LIMITS, max_bytes=10_000))
    await parts.ask(parts.session(), [user("x" * 1500)])
    with pytest.raises(ProtocolError, match="max_bytes") as refused:
        parts.session()
    assert refused.value.status == 429


@in_event_loop
async def test_an_ended_session_takes_no_turn_and_gives_up_those_in_flight() -> None:
    parts = GatewayParts()
    session = parts.session()
    parts.fleet.hold = asyncio.Event()
    asking = asyncio.create_task(parts.ask(session, [user("a")]))
    await parts.settled(lambda: bool(parts.fleet.asked))
    session.end(SessionEnd())
    for call in (asking, parts.ask(session, [user("b")])):
        with pytest.raises(ProtocolError) as refused:
            await call
        assert refused.value.status == 409
    with pytest.raises(ProtocolError):
        session.end(SessionEnd())


@pytest.mark.parametrize("pieces_are_requests", [False, True])
@in_event_loop
async def test_a_stream_shows_the_answer_in_pieces_and_then_has_it(pieces_are_requests: bool) -> None:
    parts = GatewayParts(
        fleet=ScriptedFleet(default=f"<think>well</think>I call {CALL}"),
        settings=replace(SETTINGS, pieces_are_requests=pieces_are_requests),
    )
    session = parts.session()
    request = TurnRequest((user("a"),), (SEARCH,), stream=True)
    turn = parts.turns.begin(session, request, None)
    turn.join()
    pieces = [piece async for piece in turn.pieces()]
    turn.leave()
    assert pieces[0].start is not None
    answer = pieces[-1].answer
    assert answer is not None
    assert (answer.id, answer.prompt_tokens) == (pieces[0].start.id, pieces[0].start.prompt_tokens)
    assert "".join(piece.text for piece in pieces) == answer.text == "I call"
    assert "".join(piece.reasoning for piece in pieces) == answer.reasoning == "well"
    assert (len(parts.fleet.asked) > 5) == pieces_are_requests
    assert sum(bool(piece.reasoning or piece.text) for piece in pieces) > 2, "shown stream_tokens at a time"
    check_row(session, 0, [f"<think>well</think>I call {CALL}"])


@in_event_loop
async def test_a_stream_ends_at_the_server_where_a_stop_text_does() -> None:
    parts = GatewayParts(fleet=ScriptedFleet(default="one STOP and much that nobody wants"))
    session = parts.session()
    request = TurnRequest((user("a"),), (), AskedSampling(stop=("STOP",)), stream=True)
    answer = [piece async for piece in parts.turns.begin(session, request, None).pieces()][-1].answer
    assert answer is not None
    assert (answer.text, answer.stop_text, answer.finish_reason) == ("one ", "STOP", "stop")
    assert parts.fleet.num_cuts == 1
    check_row(session, 0, ["one STOP"])


@in_event_loop
async def test_an_answer_that_is_lost_after_some_of_it_was_shown_is_not_begun_anew() -> None:
    parts = GatewayParts(fleet=ScriptedFleet(default="abcdefghij", lost_after=4))
    session = parts.session()
    request = TurnRequest((user("a"),), (), stream=True)
    with pytest.raises(ProtocolError, match="lost after 4 tokens were shown") as lost:
        [piece async for piece in parts.turns.begin(session, request, None).pieces()]
    assert lost.value.status == 503
    assert (session.rows, parts.counts["turns_stream_lost"]) == ([], 1)
    parts.fleet.lost_after = 0
    answer = [piece async for piece in parts.turns.begin(session, request, None).pieces()][-1].answer
    assert answer is not None
    assert answer.text == "abcdefghij", "one that was not begun is asked for again"


words = st.text("abc", min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["grow", "retry", "edit", "cut", "new"]), words, words), max_size=12))
@in_event_loop
async def test_whatever_a_harness_does_every_sampled_token_is_in_one_row_once(
    steps: list[tuple[str, str, str]],
) -> None:
    parts = GatewayParts(max_rows=100)
    session = parts.session()
    messages, texts = [user("begin")], []
    for kind, asked, answered in steps:
        if kind == "edit" and len(messages) > 2:
            messages = [*messages[:-1], user(asked)]
        elif kind == "cut":
            messages = [*messages[:1], user(asked)]
        elif kind == "new":
            messages = [user(asked)]
        parts.fleet.script.append(answered)
        answer = await parts.ask(session, messages)
        texts.append(answered)
        assert parts.fleet.asked[-1][0] == AsciiChat().render(messages), "the model reads what the harness sent"
        if kind != "retry":
            messages = [*messages, said(answer), user(asked)]
    rows = session.trajectory_rows()
    assert sorted(text for row in rows for text in sampled_texts(row)) == sorted(texts)
    assert sum(row.num_sampled for row in rows) == sum(len(text) + 1 for text in texts)
    assert session.num_turns == len(texts)
