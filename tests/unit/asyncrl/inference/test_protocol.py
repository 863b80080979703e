"""Answers of servers: what is usable, what is refused, and under which name it is counted."""

import json
from pathlib import Path
from typing import Any

import pytest

from asyncrl.errors import PreflightError
from asyncrl.inference.errors import MalformedAnswer, RequestRefused, ServerUnavailable
from asyncrl.inference.protocol import VersionRun, parse_answer, parse_status, vocab_size


def answer(
    ids: list[int], finish: dict[str, Any], logprobs: list[list[Any]] | None = None, **meta: Any
) -> dict[str, Any]:
    pairs = [[-0.5, one, None] for one in ids] if logprobs is None else logprobs
    return {"output_ids": ids, "meta_info": {"finish_reason": finish, "output_token_logprobs": pairs, **meta}}


STOP = {"type": "stop", "matched": 2}


def test_an_answer_keeps_ids_logprobs_and_version_spans() -> None:
    spans = [{"version": "1.3", "start": 0, "end": 2}, {"version": "1.4", "start": 2, "end": 3}]
    parsed = parse_answer(answer([5, 6, 2], STOP, weight_version="1.4", weight_versions=spans))
    assert parsed.token_ids == (5, 6, 2)
    assert parsed.logprobs == (-0.5, -0.5, -0.5)
    assert parsed.finish_reason == "stop"
    assert parsed.runs == (VersionRun("1.3", 2), VersionRun("1.4", 1))
    assert not parsed.one_version


def test_a_span_without_tokens_is_left_out() -> None:
    spans = [{"version": "1.3", "start": 0, "end": 0}, {"version": "1.4", "start": 0, "end": 1}]
    assert parse_answer(answer([2], STOP, weight_versions=spans)).runs == (VersionRun("1.4", 1),)


def test_one_version_for_the_whole_answer_is_marked_as_such() -> None:
    parsed = parse_answer(answer([5, 2], STOP, weight_version="1.3"))
    assert parsed.runs == (VersionRun("1.3", 2),)
    assert parsed.one_version


def test_an_abort_is_never_a_stop_and_keeps_its_tokens() -> None:
    """B204: half an answer is never scored as a whole one."""
    parsed = parse_answer(answer([5, 6], {"type": "abort", "message": "Aborted"}, weight_version="1.3"))
    assert parsed.finish_reason == "abort"
    assert parsed.token_ids == (5, 6)


@pytest.mark.parametrize("pairs", [[], None])
def test_an_abort_in_the_queue_has_no_tokens_and_no_spans(pairs: list[list[Any]] | None) -> None:
    """B205: no index into what is empty."""
    body = answer([], {"type": "abort", "message": "Abort in waiting queue"})
    if pairs is None:
        del body["meta_info"]["output_token_logprobs"]
    parsed = parse_answer(body)
    assert (parsed.token_ids, parsed.logprobs, parsed.runs) == ((), (), ())


def test_a_refusal_delivered_as_200_is_a_refusal() -> None:
    """B206: its one token is not trained on."""
    with pytest.raises(RequestRefused, match="too long"):
        parse_answer(answer([7], {"type": "abort", "message": "too long", "status_code": 400}))


def test_a_busy_server_delivered_as_200_may_be_asked_again() -> None:
    with pytest.raises(ServerUnavailable, match="queue is full"):
        parse_answer(answer([], {"type": "abort", "message": "queue is full", "status_code": 503}))


def test_a_trimmed_stop_token_is_restored_with_its_logprob() -> None:
    """B207: or the model never learns to stop."""
    pairs = [[-0.1, 5, None], [-0.2, 6, None], [-0.3, 2, None]]
    parsed = parse_answer(answer([5, 6], STOP, pairs, completion_tokens=3, weight_version="1.3"))
    assert parsed.token_ids == (5, 6, 2)
    assert parsed.logprobs[-1] == -0.3


@pytest.mark.parametrize(
    ("ids", "pairs"),
    [
        ([5, 6, 7, 8], [[-0.1, 5, None], [-0.1, 6, None], [-0.1, 7, None]]),
        ([5, 6], [[-0.1, 5, None], [-0.1, 9, None]]),
        ([5, 6], [[-0.1, 5, None], [-0.1, 6, None], [-0.1, 9, None]]),
        ([5, 6], []),
    ],
)
def test_ids_and_logprobs_that_disagree_are_refused(ids: list[int], pairs: list[list[Any]]) -> None:
    """B208: no zip cuts them to the shorter."""
    with pytest.raises(MalformedAnswer) as caught:
        parse_answer(answer(ids, STOP, pairs))
    assert caught.value.reason == "mismatched_logprobs"


@pytest.mark.parametrize("logprob", [None, float("-inf"), float("nan")])
def test_a_logprob_that_is_no_number_never_becomes_zero(logprob: float | None) -> None:
    """B059, B209: whatever the server computed while its weights changed, the answer is refused under a name of its
    own."""
    with pytest.raises(MalformedAnswer) as caught:
        parse_answer(answer([5, 6], STOP, [[-0.1, 5, None], [logprob, 6, None]]))
    assert caught.value.reason == "logprob_not_finite"


@pytest.mark.parametrize(
    "spans",
    [
        [{"version": "1.3", "start": 0, "end": 1}],
        [{"version": "1.3", "start": 1, "end": 2}],
        [{"version": "1.3", "start": 0, "end": 1}, {"version": "1.4", "start": 0, "end": 2}],
        [{"version": "1.3", "start": 0, "end": 3}],
    ],
)
def test_spans_that_do_not_cover_the_tokens_once_are_refused(spans: list[dict[str, Any]]) -> None:
    with pytest.raises(MalformedAnswer) as caught:
        parse_answer(answer([5, 2], STOP, weight_versions=spans))
    assert caught.value.reason == "spans"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "missing_field"),
        ({"output_ids": [1], "meta_info": {"finish_reason": None}}, "missing_field"),
        (answer([1], {"type": "banana"}), "finish_reason"),
    ],
)
def test_an_answer_of_another_shape_is_refused(body: dict[str, Any], reason: str) -> None:
    with pytest.raises(MalformedAnswer) as caught:
        parse_answer(body)
    assert caught.value.reason == reason


def test_the_loaders_status_gives_version_and_digest_back() -> None:
    status = parse_status([0.0, 2.0, 7.0, 4294967295.0, 1.0, 12.0])
    assert (status.code, status.version, status.digest, status.num_changed) == (0, 2 << 32 | 7, 0xFFFFFFFF00000001, 12)
    with pytest.raises(MalformedAnswer):
        parse_status([0.0])


def test_the_vocabulary_is_read_from_the_model_directory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 50}))
    assert vocab_size(tmp_path) == 50
    with pytest.raises(PreflightError, match="vocab_size"):
        vocab_size(tmp_path / "nowhere")
