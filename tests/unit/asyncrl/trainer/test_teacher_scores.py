"""Teachers' columns of rows become numbers of trained tokens, whatever is between and around them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from asyncrl.algorithms import ALGORITHMS
from asyncrl.errors import ConfigError
from asyncrl.trainer.batch import Batch, build
from asyncrl.trainer.tally import Tally
from asyncrl.trainer.teacher_scores import measure_teacher, require_teachers, teacher_logprobs, teacher_top
from buffer import Group, Row, Span, Trajectory

NAN = float("nan")


def row(sampled: list[int], **columns: list[float]) -> Row:
    """Six tokens, of which some were sampled; a column is given by the teacher's name."""
    mask = np.isin(np.arange(6), sampled)
    return Row(
        token_ids=np.arange(6, dtype=np.uint32),
        mask=mask,
        logprobs=np.where(mask, -0.5, 0).astype(np.float32),
        spans=(Span(0, 1, len(sampled)),),
        num_prompt_tokens=min(sampled),
        columns={
            **{f"teacher/{name}/topk_ids": np.zeros((6, 2), dtype=np.int32) for name in columns},
            **{f"teacher/{name}/logprobs": np.array(values, dtype=np.float32) for name, values in columns.items()},
        },
    )


def batch(*rows: Row) -> Batch:
    trajectories = tuple(Trajectory(rows=(one,), reward=1.0) for one in rows)
    groups = [Group(ordinal=0, attempt=1, data_source="toy", trajectories=trajectories)]
    return build(groups, [[0]], filter_zero_variance=False, lag_of=lambda version: 0, max_lag=8)


def test_each_trained_token_gets_its_own_logprob_and_rows_without_a_teacher_none() -> None:
    got = teacher_logprobs(batch(row([2, 4], big=[0, 0, -2, 0, -4, 0]), row([3]), row([5], big=[0] * 5 + [-5])))
    np.testing.assert_array_equal(got.numpy(), np.array([-2, -4, NAN, -5], dtype=np.float32))


def test_of_several_teachers_the_first_of_the_row_counts() -> None:
    first = row([2], first=[0, 0, -1, 0, 0, 0], second=[0, 0, -9, 0, 0, 0])
    second = row([2], second=[0, 0, -9, 0, 0, 0])
    assert teacher_logprobs(batch(first, second)).tolist() == [-1, -9]


def test_the_distance_is_measured_over_scored_tokens_only() -> None:
    tally = Tally()
    measure_teacher(torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-2.0, NAN, -3.5]), tally)
    numbers = tally.values()
    assert numbers["distill/reverse_kl"] == pytest.approx(0.75)
    assert numbers["distill/scored_frac"] == pytest.approx(2 / 3)


def test_an_algorithm_that_learns_from_a_teacher_is_refused_without_one() -> None:
    require_teachers(ALGORITHMS["grpo"], {})
    require_teachers(ALGORITHMS["opd"], {"big": 0})
    for row_ in (ALGORITHMS["opd"], replace(ALGORITHMS["grpo"], distill_coef=0.5)):
        with pytest.raises(ConfigError, match="teachers is empty"):
            require_teachers(row_, {})


def test_likeliest_tokens_are_looked_at_only_where_every_teacher_keeps_some() -> None:
    algorithm = replace(ALGORITHMS["grpo"], distill_coef=0.5, distill_estimator="topk")
    require_teachers(algorithm, {"big": 8})
    with pytest.raises(ConfigError, match="top_k of teacher 'small' is 0"):
        require_teachers(algorithm, {"big": 8, "small": 0})


def with_top(sampled: list[int], width: int) -> Row:
    """A row whose teacher's i-th likeliest token at place p has id 10 p + i and logprob -i."""
    plain = row(sampled, big=[0.0] * 6)
    ids = 10 * np.arange(6)[:, None] + np.arange(width)
    columns = {
        "teacher/big/logprobs": plain.columns["teacher/big/logprobs"],
        "teacher/big/topk_logprobs": -np.tile(np.arange(width, dtype=np.float32), (6, 1)),
        "teacher/big/topk_ids": ids.astype(np.int32),
    }
    return replace(plain, columns=columns)


def test_likeliest_tokens_are_cut_to_the_least_that_a_teacher_kept() -> None:
    logprobs, ids = teacher_top(batch(with_top([2, 4], 3), row([3]), with_top([5], 2)))
    assert ids.tolist() == [[20, 21], [40, 41], [0, 0], [50, 51]]
    assert logprobs[[0, 1, 3]].tolist() == [[0, -1]] * 3
    assert logprobs[2].isnan().all()
    assert teacher_top(batch(row([3])))[0].shape == (1, 1)
