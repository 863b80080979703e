"""Estimators against slow, obvious versions, and the inputs that broke other implementations."""

import random
import statistics

import pytest
import torch
from torch import Tensor

from asyncrl.algorithms.advantages import (
    best_of_group,
    group_baseline_whitened,
    group_relative,
    leave_one_out,
    length_weighted_baseline,
    scaled_by_batch,
    scaled_by_informative,
    token_rewards,
)
from asyncrl.algorithms.returns import whitened_returns

NAN = float("nan")


def one_token(rewards: list[float], groups: list[int] | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of one valid token, all in one group unless said otherwise."""
    ids = torch.tensor(groups or [0] * len(rewards))
    return torch.tensor(rewards), torch.ones(len(rewards), 1, dtype=torch.bool), ids


def random_batch(number: int) -> tuple[list[float], list[int], list[int]]:
    """Rewards, group ids in any order and of any size, and lengths."""
    rng = random.Random(number)
    rows = rng.randint(1, 24)
    rewards = [rng.choice([0.0, 1.0, 0.5, 0.1, rng.gauss(0, 3)]) for _ in range(rows)]
    return rewards, [rng.randint(-3, 3) for _ in range(rows)], [rng.randint(0, 5) for _ in range(rows)]


def masks(lengths: list[int]) -> Tensor:
    return torch.arange(6) < torch.tensor(lengths)[:, None]


@pytest.mark.parametrize("number", range(20))
def test_group_estimators_equal_their_definitions_row_by_row(number: int) -> None:
    rewards, ids, lengths = random_batch(number)
    lengths = [max(n, 1) for n in lengths]
    expected: dict[str, list[float]] = {"grpo": [], "dr_grpo": [], "rloo": [], "opo": []}
    for reward, group in zip(rewards, ids, strict=True):
        members = [r for r, g in zip(rewards, ids, strict=True) if g == group]
        sizes = [n for n, g in zip(lengths, ids, strict=True) if g == group]
        if max(members) == min(members):
            for values in expected.values():
                values.append(reward if len(members) == 1 else 0.0)
            continue
        others = list(members)
        others.remove(reward)
        weighted = sum(n * r for n, r in zip(sizes, members, strict=True)) / sum(sizes)
        centred = reward - statistics.fmean(members)
        expected["grpo"].append(centred / (statistics.stdev(members) + 1e-6))
        expected["dr_grpo"].append(centred)
        expected["rloo"].append(reward - statistics.fmean(others))
        expected["opo"].append(reward - weighted)
    arguments = (torch.tensor(rewards, dtype=torch.float64), masks(lengths), torch.tensor(ids))
    got = {
        "grpo": group_relative(*arguments),
        "dr_grpo": group_relative(*arguments, divide_by_std=False),
        "rloo": leave_one_out(*arguments),
        "opo": length_weighted_baseline(*arguments),
    }
    for name, values in expected.items():
        torch.testing.assert_close(got[name], torch.tensor(values)[:, None] * masks(lengths), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [3, 7, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_that_no_float_holds_exactly_give_exactly_zero(size: int, dtype: torch.dtype) -> None:
    for estimator in (
        group_relative,
        leave_one_out,
        length_weighted_baseline,
        group_baseline_whitened,
        scaled_by_batch,
    ):
        rewards, mask, ids = one_token([0.1] * size)
        assert (estimator(torch.full_like(rewards, 0.1, dtype=dtype), mask, ids) == 0).all()


def test_leaving_one_out_of_seven_equal_rewards_keeps_the_small_difference() -> None:
    got = leave_one_out(*one_token([0.35] * 7 + [0.0]))
    torch.testing.assert_close(got[:, 0], torch.tensor([0.05] * 7 + [-0.35]))


def test_a_group_of_one_gets_its_reward_or_zero_as_asked() -> None:
    for estimator in (group_relative, leave_one_out, length_weighted_baseline, scaled_by_informative):
        rows = one_token([2.0, 1.0, 0.0], [5, 6, 6])
        assert estimator(*rows, singleton="zero")[0] == 0
        assert estimator(*rows, singleton="raw")[0] > 0


def test_a_row_without_a_score_is_no_part_of_the_mean() -> None:
    got = group_relative(*one_token([1.0, NAN, 0.0, 0.0]), divide_by_std=False)
    torch.testing.assert_close(got[:, 0], torch.tensor([2 / 3, 0.0, -1 / 3, -1 / 3]))


def test_a_row_masked_for_its_length_still_counts_in_the_groups_mean() -> None:
    rewards, mask, ids = one_token([1.0, 0.0, -1.0])
    mask[2] = False
    got = group_relative(rewards, mask, ids, divide_by_std=False)
    torch.testing.assert_close(got[:, 0], torch.tensor([1.0, 0.0, 0.0]))


def test_a_group_that_is_left_with_one_score_is_a_group_of_one() -> None:
    assert (group_relative(*one_token([1.0, NAN]), singleton="zero") == 0).all()
    assert group_relative(*one_token([1.0, NAN]), singleton="raw")[:, 0].tolist() == [1.0, 0.0]


def test_a_group_without_any_score_gives_zero() -> None:
    for estimator in (group_relative, leave_one_out, best_of_group, group_baseline_whitened, whitened_returns):
        assert (estimator(*one_token([NAN, NAN])) == 0).all()


def test_lengths_that_are_all_zero_give_zero() -> None:
    rewards, mask, ids = one_token([1.0, 0.0])
    assert (length_weighted_baseline(rewards, mask & False, ids) == 0).all()


def test_only_the_best_row_is_reinforced_and_a_tie_reinforces_none() -> None:
    rows = one_token([3.0, 1.0, 2.0, 4.0, 4.0, 0.0], [0, 0, 0, 1, 1, 1])
    assert best_of_group(*rows, divide_by_std=False)[:, 0].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_the_informative_share_scales_the_whole_batch() -> None:
    got = scaled_by_informative(*one_token([1.0, 0.0, 0.0, 0.0], [0, 0, 1, 1]))
    assert got[:, 0].tolist() == [2.0, -2.0, 0.0, 0.0]


def test_token_rewards_and_outcome_rewards_give_the_same_row_scores() -> None:
    mask = torch.tensor([[True, False, True, False], [True, True, False, False]])
    outcome, ids = torch.tensor([1.0, 0.25]), torch.tensor([0, 0])
    placed = token_rewards(outcome, mask)
    assert placed.tolist() == [[0, 0, 1.0, 0], [0, 0.25, 0, 0]]
    torch.testing.assert_close(group_relative(placed, mask, ids), group_relative(outcome, mask, ids))


def test_lite_ppo_scales_by_the_deviation_of_the_batch_so_that_an_even_group_is_not_blown_up() -> None:
    """Groups without a difference get 0 by themselves, not by the deviation they are scaled with (B081)."""
    rewards = [1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    rows = one_token(rewards, [0] * 4 + [1] * 4)
    got = scaled_by_batch(*rows)[:, 0]
    scale = statistics.stdev(rewards) + 1e-6
    torch.testing.assert_close(got, torch.tensor([0.0] * 4 + [0.75 / scale] + [-0.25 / scale] * 3))


def test_lite_ppos_deviation_is_that_of_the_rows_with_a_score() -> None:
    got = scaled_by_batch(*one_token([1.0, NAN, 0.0, 0.0, 3.0, 2.0], [0, 0, 0, 0, 1, 1]))[:, 0]
    scale = statistics.stdev([1.0, 0.0, 0.0, 3.0, 2.0]) + 1e-6
    torch.testing.assert_close(
        got, torch.tensor([2 / 3, 0.0, -1 / 3, -1 / 3, 0.5, -0.5]).div(scale), rtol=1e-5, atol=1e-6
    )


def test_group_ids_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="2 group ids for 3 rows"):
        group_relative(torch.zeros(3), torch.ones(3, 1, dtype=torch.bool), torch.zeros(2))
