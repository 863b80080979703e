"""Trajectories check themselves: each contradiction is an error that names the field."""

from typing import Any

import numpy as np
import pytest

from buffer import Group, Row, Span, Trajectory, TrajectoryError, pack
from tests.support.groups import group, row

VERSION = pack(1, 4)


def fields(**changes: Any) -> dict[str, Any]:
    """A row of five tokens, the last three sampled, with some fields changed."""
    good = {
        "token_ids": np.arange(5, dtype=np.uint32),
        "mask": np.array([False, False, True, True, True]),
        "logprobs": np.array([0, 0, -1, -2, -3], np.float32),
        "spans": (Span(VERSION, 9, 3),),
        "num_prompt_tokens": 2,
    }
    return {**good, **changes}


def test_a_sound_row_knows_what_was_sampled() -> None:
    assert Row(**fields()).num_sampled == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": np.arange(5)}, r"Row.token_ids must be uint32 \[5\], found int64 \[5\]"),
        ({"token_ids": [1, 2, 3, 4, 5]}, r"Row.token_ids must be uint32 \[T\], found list"),
        ({"token_ids": np.zeros((5, 1), np.uint32)}, r"Row.token_ids must be uint32 \[T\]"),
        ({"mask": np.ones(4, bool)}, r"Row.mask must be bool \[5\], found bool \[4\]"),
        ({"mask": np.ones(5, np.uint8)}, r"Row.mask must be bool \[5\], found uint8"),
        ({"logprobs": np.zeros(5)}, r"Row.logprobs must be float32 \[5\], found float64"),
        ({"logprobs": np.array([0, 0, np.nan, -1, -1], np.float32)}, r"Row.logprobs\[2\] = nan is not finite"),
        ({"logprobs": np.array([0, 0, -np.inf, -1, -1], np.float32)}, r"Row.logprobs\[2\] = -inf"),
        ({"logprobs": np.array([0, -1, -1, -1, -1], np.float32)}, "Row.logprobs is not 0 where Row.mask is False"),
        ({"num_prompt_tokens": 3}, "Row.mask marks a token of the prompt"),
        ({"num_prompt_tokens": 6}, r"Row.num_prompt_tokens = 6 must be in 0..5"),
        ({"num_prompt_tokens": True}, "Row.num_prompt_tokens = True is a bool"),
        ({"spans": ()}, "Row.spans cover 0 tokens, Row.mask marks 3"),
        ({"spans": (Span(VERSION, 9, 2),)}, "a token without a version would count as fresh"),
        ({"spans": (VERSION,)}, "Row.spans must hold Span"),
        ({"columns": {"experts": np.zeros(4, np.uint8)}}, r"Row.columns.experts must be an array \[5, ...\]"),
        ({"columns": {"names": np.array(list("abcde"))}}, r"Row.columns.names must be an array"),
    ],
)
def test_a_row_that_contradicts_itself_names_the_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TrajectoryError, match=message):
        Row(**fields(**changes))


def test_a_row_without_tokens_is_refused() -> None:
    none = {"token_ids": np.zeros(0, np.uint32), "mask": np.zeros(0, bool), "logprobs": np.zeros(0, np.float32)}
    with pytest.raises(TrajectoryError, match=r"Row\.token_ids is empty"):
        Row(**none, spans=(), num_prompt_tokens=0)


@pytest.mark.parametrize(
    ("span", "message"),
    [
        ((-1, 0, 1), "Span.version"),
        ((0, 1 << 64, 1), "Span.digest"),
        ((0, 0, 0), "num_tokens"),
        ((None, 0, 1), "version"),
    ],
)
def test_a_span_without_a_version_is_an_error_and_not_fresh(span: tuple[Any, Any, Any], message: str) -> None:
    with pytest.raises(TrajectoryError, match=message):
        Span(*span)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": ()}, "Trajectory.rows"),
        ({"reward": float("nan")}, "Trajectory.reward = nan is not a finite number"),
        ({"reward": float("inf")}, "Trajectory.reward = inf"),
        ({"reward": True}, "Trajectory.reward = True is a bool"),
        ({"reward": "1"}, "Trajectory.reward = '1' is a str"),
        ({"reward": None}, "exactly one of the two"),
        ({"reward_error": "timeout"}, "exactly one of the two"),
        ({"reward_parts": {"format": float("nan")}}, "Trajectory.reward_parts.format = nan"),
        ({"reward_parts": None}, "Trajectory.reward_parts must be a mapping"),
        ({"extra_info": []}, "Trajectory.extra_info must be a mapping"),
        ({"finish_reason": "eos"}, "finish_reason = 'eos' is not one of stop, length, abort, env"),
        (
            {"extra_info": {"seed": 2**64}},
            r"Trajectory.extra_info.seed = 18446744073709551616 does not fit into 64 bits",
        ),
        ({"extra_info": {"deep": {"neg": [0, -(2**63) - 1]}}}, r"Trajectory.extra_info.deep.neg\[1\]"),
        ({"extra_info": {"blob": b"x"}}, "Trajectory.extra_info.blob is a bytes"),
        ({"extra_info": {"thing": object()}}, "Trajectory.extra_info.thing is a object"),
        ({"extra_info": {"score": float("nan")}}, "Trajectory.extra_info.score = nan"),
        ({"extra_info": {(1, 2): 3}}, "Trajectory.extra_info key"),
    ],
)
def test_a_trajectory_that_contradicts_itself_names_the_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TrajectoryError, match=message):
        Trajectory(**{"rows": (row([VERSION]),), "reward": 1.0, **changes})


def test_a_failed_reward_is_null_with_its_error() -> None:
    failed = Trajectory(rows=(row([VERSION]),), reward=None, reward_error="timeout after 5 s")
    assert failed.reward is None


def test_free_form_data_gets_one_plain_form() -> None:
    info = {
        "reward": np.float32(0.5),
        "len": np.int64(7),
        "ok": np.bool_(True),
        1: "x",
        "t": (1, 2),
        "a": np.arange(3),
        "big": 2**64 - 1,
        "text": "ok \ud83d",
        "none": None,
    }
    plain = dict(Trajectory(rows=(row([VERSION]),), reward=np.float32(0.25), extra_info=info).extra_info)
    assert plain == {
        "reward": 0.5,
        "len": 7,
        "ok": True,
        "1": "x",
        "t": [1, 2],
        "a": [0, 1, 2],
        "big": 2**64 - 1,
        "text": "ok \ufffd",
        "none": None,
    }
    assert [type(plain[name]) for name in ("reward", "len", "ok")] == [float, int, bool]


def test_data_nested_without_end_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(40):
        deep = {"in": deep}
    with pytest.raises(TrajectoryError, match="nested deeper than 32"):
        Trajectory(rows=(row([VERSION]),), reward=0.0, extra_info=deep)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ordinal": -1}, "Group.ordinal = -1"),
        ({"attempt": 0}, "Group.attempt = 0"),
        ({"trajectories": ()}, "at least one"),
    ],
)
def test_a_group_that_contradicts_itself_names_the_field(changes: dict[str, Any], message: str) -> None:
    good = {"ordinal": 3, "attempt": 1, "data_source": "s", "trajectories": group(3, 1, [VERSION]).trajectories}
    with pytest.raises(TrajectoryError, match=message):
        Group(**{**good, **changes})


def test_a_group_knows_both_ends_of_every_branch_it_was_sampled_on() -> None:
    made = group(3, 2, [pack(1, 4), pack(1, 6), pack(2, 5)])
    assert made.gid == "3.2"
    assert made.number_ranges() == {1: (4, 6), 2: (5, 5)}


def test_rows_of_different_lengths_keep_their_own() -> None:
    short, long = row([VERSION]), row([VERSION] * 3)
    both = Trajectory(rows=(short, long), reward=1.0)
    assert [len(one.token_ids) for one in both.rows] == [5, 11]
    assert (both.num_tokens, both.num_sampled) == (16, 12)


def test_equality_compares_what_arrays_hold() -> None:
    assert group(1, 1, [VERSION]) == group(1, 1, [VERSION])
    assert group(1, 1, [VERSION]) != group(1, 1, [pack(1, 5)])
    assert Row(**fields()) != Row(**fields(logprobs=np.array([0, 0, -1, -2, -3.5], np.float32)))
