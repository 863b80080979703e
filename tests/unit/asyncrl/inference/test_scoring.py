"""Scores of given tokens: what is asked for, and which answers are refused because they would teach something else."""

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from asyncrl.errors import ServerError
from asyncrl.inference.errors import MalformedAnswer, RequestRefused, ServerBusy
from asyncrl.inference.scoring import ScoreQuestion, parse_scores, score_request

QUESTION = ScoreQuestion("r", [7, 8, 9, 10], first=2)


def good() -> dict[str, Any]:
    return {
        "meta_info": {
            "finish_reason": {"type": "length", "length": 0},
            "input_token_logprobs": [[None, 8, None], [-0.5, 9, None], [-1.5, 10, None]],
            "input_top_logprobs": [
                None,
                [[-0.1, 3, None], [-0.5, 9, None]],
                [[-0.2, 4, None], [-1.5, 10, None]],
            ],
        }
    }


def parse(body: Any, num_top: int = 2) -> Any:
    return parse_scores(body, QUESTION, num_top=num_top, vocab_size=11)


def test_the_request_asks_for_no_token_and_for_logprobs_from_the_token_before_the_first() -> None:
    body = score_request([QUESTION, ScoreQuestion("s", [1, 2], first=1)], num_top=2)
    assert body["input_ids"] == [[7, 8, 9, 10], [1, 2]]
    assert body["logprob_start_len"] == [1, 0]
    assert body["top_logprobs_num"] == [2, 2]
    assert body["sampling_params"] == [{"max_new_tokens": 0, "temperature": 1.0}] * 2
    assert "top_logprobs_num" not in score_request([QUESTION], num_top=0)


def test_a_good_answer_gives_each_token_its_logprob_and_the_likeliest_ones() -> None:
    scores = parse(good())
    assert scores.logprobs_S.tolist() == [-0.5, -1.5]
    assert scores.logprobs_S.dtype == np.float32
    np.testing.assert_array_equal(scores.top_ids_SK, [[3, 9], [4, 10]])
    assert scores.top_ids_SK.dtype == np.int32
    np.testing.assert_allclose(scores.top_logprobs_SK, [[-0.1, -0.5], [-0.2, -1.5]], rtol=1e-6)
    assert parse(good(), num_top=0).top_ids_SK.shape == (2, 0)


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (("input_token_logprobs", 1, 1), 3, "mismatched_logprobs"),
        (("input_token_logprobs",), [[None, 8, None], [-0.5, 9, None]], "mismatched_logprobs"),
        (("input_token_logprobs", 1, 0), float("nan"), "logprob_not_finite"),
        (("input_token_logprobs", 2, 0), float("-inf"), "logprob_not_finite"),
        (("input_token_logprobs", 2, 0), None, "logprob_not_finite"),
        (("input_token_logprobs", 2, 0), "-1", "logprob_not_finite"),
        (("input_top_logprobs", 1), [[-0.1, 3, None]], "top_logprobs"),
        (("input_top_logprobs",), [None], "top_logprobs"),
        (("input_top_logprobs", 1, 0, 1), 11, "top_ids"),
        (("input_top_logprobs", 1, 0, 0), float("nan"), "logprob_not_finite"),
        (("input_token_logprobs",), None, "shape"),
        (("finish_reason",), {"type": "abort", "message": "Aborted"}, "aborted"),
    ],
)
def test_an_answer_that_contradicts_the_question_is_dropped(path: tuple[Any, ...], value: Any, reason: str) -> None:
    body = good()
    place = body["meta_info"]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(MalformedAnswer) as caught:
        parse(body)
    assert caught.value.reason == reason


@pytest.mark.parametrize(("status", "kind"), [(400, RequestRefused), (503, ServerBusy)])
def test_a_refusal_under_http_200_is_a_refusal(status: int, kind: type[Exception]) -> None:
    body = good()
    body["meta_info"]["finish_reason"] = {"type": "abort", "message": "no", "status_code": status}
    with pytest.raises(kind):
        parse(body)


@seed(0)
@settings(max_examples=200, deadline=None, database=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(sorted(good()["meta_info"])), inner)
        ),
        max_leaves=12,
    )
)
def test_whatever_a_server_says_is_scores_or_a_server_error(junk: Any) -> None:
    body = copy.deepcopy(good())
    if isinstance(junk, dict):
        body["meta_info"].update(junk)
    else:
        body["meta_info"] = junk
    try:
        scores = parse(body)
    except ServerError:
        return
    assert np.isfinite(scores.logprobs_S).all()
    assert scores.logprobs_S.shape == (2,)
