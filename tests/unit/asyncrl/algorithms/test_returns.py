"""Return-based estimators against their recursions row by row in plain Python."""

import random

import pytest
import torch
from torch import Tensor

from asyncrl.algorithms.returns import above_greedy, discounted_returns, generalized_advantages, whitened_gae

NAN = float("nan")


def plain_gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> tuple[list[float], list[float]]:
    """Equation 16 of arXiv:1506.02438, on a row without masked positions."""
    errors = [
        reward + gamma * following - value
        for reward, value, following in zip(rewards, values, [*values[1:], 0.0], strict=True)
    ]
    advantages = [
        sum((gamma * lam) ** (later - t) * errors[later] for later in range(t, len(errors))) for t in range(len(errors))
    ]
    return advantages, [advantage + value for advantage, value in zip(advantages, values, strict=True)]


@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.5), (0.97, 0.0)])
def test_gae_is_its_definition_on_the_tokens_of_each_row_with_the_masked_ones_squeezed_out(
    number: int, gamma: float, lam: float
) -> None:
    rng = random.Random(number)
    width = 9
    mask = torch.tensor([[rng.random() < 0.6 for _ in range(width)] for _ in range(4)])
    rewards, values = (torch.tensor([[rng.gauss(0, 1) for _ in range(width)] for _ in range(4)]) for _ in range(2))
    advantages, returns = generalized_advantages(rewards, values, mask, gamma=gamma, lam=lam)
    for row in range(4):
        kept = mask[row]
        expected = plain_gae(rewards[row][kept].tolist(), values[row][kept].tolist(), gamma, lam)
        torch.testing.assert_close(advantages[row][kept], torch.tensor(expected[0], dtype=torch.float64))
        torch.testing.assert_close(returns[row][kept], torch.tensor(expected[1], dtype=torch.float64))
    assert (advantages[~mask] == 0).all()
    assert (returns[~mask] == 0).all()


def test_with_lambda_one_the_returns_are_the_rewards_to_come_whatever_the_critic_says() -> None:
    mask = torch.tensor([[True, False, True, True]])
    values = torch.tensor([[5.0, 100.0, -3.0, 0.5]])
    _, returns = generalized_advantages(torch.tensor([2.0]), values, mask, gamma=1.0, lam=1.0)
    assert returns.tolist() == [[2.0, 0.0, 2.0, 2.0]]


def gae(rewards: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    return whitened_gae(rewards, mask, torch.zeros(len(mask)), values_BT=values)


def test_a_value_that_is_not_finite_spoils_what_leads_to_it_and_nothing_else() -> None:
    rewards, mask = torch.tensor([1.0, 0.0, 2.0]), torch.ones(3, 3, dtype=torch.bool)
    values = torch.tensor([[0.1, 0.2, 0.3], [0.4, NAN, 0.6], [0.7, 0.8, 0.9]])
    got = gae(rewards, values, mask)
    assert got.isnan().tolist() == [[False] * 3, [True, True, False], [False] * 3]
    known = got[~got.isnan()]
    torch.testing.assert_close(known.mean(), torch.tensor(0.0), atol=1e-6, rtol=0.0)
    torch.testing.assert_close(known.std(), torch.tensor(1.0), atol=1e-5, rtol=0.0)


def test_a_row_without_a_score_is_in_no_statistic_of_gae() -> None:
    rewards, mask = torch.tensor([1.0, NAN, 2.0]), torch.ones(3, 2, dtype=torch.bool)
    values = torch.tensor([[0.1, 0.2], [9.0, -9.0], [0.7, 0.8]])
    got = gae(rewards, values, mask)
    assert (got[1] == 0).all()
    torch.testing.assert_close(got[[0, 2]], gae(rewards[[0, 2]], values[[0, 2]], mask[[0, 2]]))


def test_remax_subtracts_the_greedy_score_and_leaves_out_rows_that_have_none() -> None:
    mask = torch.tensor([[True, True, False], [True, True, True], [True, False, False]])
    rewards, baselines = torch.tensor([1000.1, 0.25, 1.0], dtype=torch.float64), torch.tensor([1000.1, 1.0, NAN])
    got = above_greedy(rewards, mask, torch.zeros(3), baselines_B=baselines.double())
    torch.testing.assert_close(got[0], torch.zeros(3), atol=1e-4, rtol=0.0)
    assert got[1].tolist() == [-0.75, -0.75, -0.75]
    assert got[2].tolist() == [0.0, 0.0, 0.0]


def test_remax_with_rewards_of_tokens_counts_those_still_to_come() -> None:
    mask = torch.tensor([[True, False, True, True]])
    rewards = torch.tensor([[1.0, 50.0, 2.0, 4.0]])
    got = above_greedy(rewards, mask, torch.zeros(1), baselines_B=torch.tensor([3.0]))
    assert got.tolist() == [[4.0, 0.0, 3.0, 1.0]]


def test_returns_jump_over_masked_positions_without_discounting() -> None:
    mask = torch.tensor([[True, False, False, True, True, False]])
    rewards = torch.tensor([[1.0, 50.0, 60.0, 2.0, 4.0, 70.0]])
    got = discounted_returns(rewards, mask, gamma=0.5)
    assert got.tolist() == [[1 + 0.5 * (2 + 0.5 * 4), 0.0, 0.0, 2 + 0.5 * 4, 4.0, 0.0]]


def test_a_reward_on_a_masked_token_counts_for_nothing_even_if_it_is_nan() -> None:
    mask = torch.tensor([[True, False, True]])
    got = discounted_returns(torch.tensor([[1.0, NAN, 2.0]]), mask, gamma=1.0)
    assert got.tolist() == [[3.0, 0.0, 2.0]]
