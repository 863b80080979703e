"""An answer in pieces: what is new is shown once and in order, and only a whole answer is one."""

import json
from typing import Any

import pytest

from asyncrl.errors import ServerError
from asyncrl.inference.errors import MalformedAnswer, RequestRefused, ServerBusy, ServerUnavailable
from asyncrl.inference.protocol import parse_answer
from asyncrl.inference.streaming import AnswerStream, Watch

STOP = {"type": "stop", "matched": 2}


def event(ids: list[int], finish: dict[str, Any] | None = None) -> bytes:
    meta: dict[str, Any] = {"finish_reason": finish, "output_token_logprobs": [[-0.5, one, None] for one in ids]}
    if finish is not None:
        meta |= {"weight_version": "1.2", "weight_versions": [{"version": "1.2", "start": 0, "end": len(ids)}]}
    return json.dumps({"output_ids": ids, "meta_info": meta}).encode()


def stream(*events: bytes) -> tuple[AnswerStream, list[list[int]]]:
    shown: list[list[int]] = []
    made = AnswerStream(Watch(2, lambda ids: shown.append(list(ids))), "/generate")
    for one in events:
        made.take(one)
    return made, shown


def test_what_is_new_of_each_piece_is_shown_and_the_last_one_is_the_answer() -> None:
    made, shown = stream(event([5]), event([5]), event([5, 6, 7]), event([5, 6, 7, 2], STOP), b"[DONE]")
    assert shown == [[5], [6, 7], [2]]
    answer = parse_answer(made.whole())
    assert (answer.token_ids, answer.finish_reason) == ((5, 6, 7, 2), "stop")
    assert [(run.label, run.num_tokens) for run in answer.runs] == [("1.2", 4)]


def test_what_was_shown_of_an_answer_whose_server_is_gone_is_a_cut_answer_without_a_version() -> None:
    made, _ = stream(event([5]), event([5, 6]))
    answer = parse_answer(made.so_far())
    assert (answer.token_ids, answer.finish_reason, answer.one_version) == ((5, 6), "abort", True)
    assert [(run.label, run.num_tokens) for run in answer.runs] == [("", 2)]
    whole, _ = stream(event([5, 2], STOP))
    assert parse_answer(whole.so_far()) == parse_answer(json.loads(event([5, 2], STOP))), "only its end is missing"


def test_what_was_shown_without_logprobs_is_no_answer() -> None:
    made, shown = stream(json.dumps({"output_ids": [5]}).encode())
    assert shown == [[5]]
    with pytest.raises(MalformedAnswer):
        parse_answer(made.so_far())


def test_an_answer_whose_text_looks_like_its_ids_is_read_right() -> None:
    text = '"output_ids":[9] \\"output_ids\\": [8]'
    body = {"text": text, **json.loads(event([5, 2], STOP))}
    for separators in ((",", ":"), (", ", ": ")):
        made, shown = stream(json.dumps(body, separators=separators).encode())
        assert shown == [[5, 2]]
        assert made.whole()["text"] == text


def test_a_last_piece_that_is_cut_off_is_no_answer() -> None:
    made, shown = stream(event([5]), event([5, 2], STOP)[:-1])
    assert shown == [[5], [2]]
    for read in (made.whole, made.so_far):
        with pytest.raises(MalformedAnswer, match="not JSON"):
            read()


@pytest.mark.parametrize("events", [(), (b"[DONE]",), (event([5]), b"[DONE]")])
def test_a_stream_that_ends_before_its_answer_is_none(events: tuple[bytes, ...]) -> None:
    made, _ = stream(*events)
    with pytest.raises(MalformedAnswer, match="ended before its answer did"):
        made.whole()


@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [
        (b"{", MalformedAnswer, "not JSON"),
        (b"[]", MalformedAnswer, "no output_ids"),
        (json.dumps({"output_ids": [1.0, 2]}).encode(), MalformedAnswer, "no output_ids"),
        (json.dumps({"output_ids": [5, True]}).encode(), MalformedAnswer, "no output_ids"),
        (event([6, 5]), MalformedAnswer, "not the 1 of before"),
        (event([]), MalformedAnswer, "without --incremental-streaming-output"),
        (json.dumps({"error": {"message": "too long"}}).encode(), RequestRefused, "too long"),
        (json.dumps({"error": "odd"}).encode(), RequestRefused, "odd"),
        (json.dumps({"error": {"message": "full", "code": 503}}).encode(), ServerBusy, "full"),
        (json.dumps({"error": {"message": "broken", "code": 500}}).encode(), ServerUnavailable, "broken"),
    ],
)
def test_a_piece_that_is_none_is_told_apart_by_what_to_do_about_it(
    bad: bytes, error: type[ServerError], words: str
) -> None:
    made, shown = stream(event([5]))
    with pytest.raises(error, match=words) as raised:
        made.take(bad)
    assert type(raised.value) is error
    assert shown == [[5]]
