"""Estimators from what is still to come in a row: returns, alone or against a greedy response or a critic."""

import torch
from torch import Tensor

from asyncrl.algorithms.advantages import row_scores, token_rewards
from asyncrl.algorithms.base import Total, alone
from asyncrl.algorithms.masking import inside
from asyncrl.algorithms.whitening import whiten


def discounted_returns(rewards: Tensor, mask_BT: Tensor, *, gamma: float) -> Tensor:
    """[B, T] float64 returns: reward plus gamma times the return at the row's next valid position; 0 where masked.

    A masked position neither discounts nor resets, and its reward is not counted.

    Source: Williams 1992; as used by REINFORCE++, arXiv:2501.03262.
    """
    rewards_BT = inside(token_rewards(rewards, mask_BT), mask_BT)
    returns_BT = torch.zeros_like(rewards_BT)
    following_B = rewards_BT.new_zeros(len(rewards_BT))
    for t in reversed(range(mask_BT.shape[1])):
        following_B = torch.where(mask_BT[:, t], rewards_BT[:, t] + gamma * following_B, following_B)
        returns_BT[:, t] = following_B
    return inside(returns_BT, mask_BT)


def whitened_returns(
    rewards: Tensor, mask_BT: Tensor, group_ids_B: Tensor, *, gamma: float = 1.0, total: Total = alone
) -> Tensor:
    """REINFORCE++: discounted returns of each row, whitened over the batch's tokens. Groups play no part.

    Arguments and result as in `base.AdvantageEstimator`; the whitening's statistics are taken over all ranks.

    Source: arXiv:2501.03262.
    """
    valid_BT = mask_BT & row_scores(rewards).isfinite()[:, None]
    return whiten(discounted_returns(rewards, valid_BT, gamma=gamma), valid_BT, total=total)


def above_greedy(
    rewards: Tensor, mask_BT: Tensor, group_ids_B: Tensor, *, baselines_B: Tensor, total: Total = alone
) -> Tensor:
    """ReMax's advantage: the row's undiscounted return minus the score of the greedy response to the same prompt.

    Arguments and result as in `base.AdvantageEstimator`, and

    Args:
        baselines_B: [B] float, the greedy response's score for each row. NaN: it has none, so the row gets 0.
    Source: arXiv:2310.10505.
    """
    known_B = row_scores(rewards).isfinite() & baselines_B.isfinite()
    valid_BT = mask_BT & known_B[:, None]
    returns_BT = discounted_returns(rewards, valid_BT, gamma=1.0)
    return inside(returns_BT - baselines_B.double()[:, None], valid_BT).float()


def generalized_advantages(
    rewards: Tensor, values_BT: Tensor, mask_BT: Tensor, *, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """GAE: exponentially weighted errors of a critic, and the returns that it learns to foretell.

    With d(t) = r(t) + gamma V(t') - V(t), t' the row's next valid position (V = 0 beyond the last), the advantage is
    A(t) = d(t) + gamma lam A(t'), and the return A(t) + V(t).

    Args:
        rewards: [B] float, put on each row's last valid position, or [B, T] token rewards.
        values_BT: [B, T] float, the critic's, of the state before each token. One that is not finite makes the
            results up to its position NaN, and no others.
        mask_BT: [B, T] bool.
        gamma: discount of a token, in [0, 1].
        lam: 0 trusts the critic after one token, 1 not at all.
    Returns:
        Advantages (not whitened) and returns, both [B, T] float64, 0 where masked.
    Source: arXiv:1506.02438, equations 11 to 16.
    """
    rewards_BT = inside(token_rewards(rewards, mask_BT), mask_BT)
    values_BT = inside(values_BT, mask_BT).double()
    advantages_BT = torch.zeros_like(rewards_BT)
    next_value_B = next_advantage_B = rewards_BT.new_zeros(len(rewards_BT))
    for t in reversed(range(mask_BT.shape[1])):
        valid_B, value_B = mask_BT[:, t], values_BT[:, t]
        error_B = rewards_BT[:, t] + gamma * next_value_B - value_B
        next_advantage_B = torch.where(valid_B, error_B + gamma * lam * next_advantage_B, next_advantage_B)
        next_value_B = torch.where(valid_B, value_B, next_value_B)
        advantages_BT[:, t] = next_advantage_B
    advantages_BT = inside(advantages_BT, mask_BT)
    return advantages_BT, advantages_BT + values_BT


def whitened_gae(
    rewards: Tensor,
    mask_BT: Tensor,
    group_ids_B: Tensor,
    *,
    values_BT: Tensor,
    gamma: float = 1.0,
    lam: float = 1.0,
    total: Total = alone,
) -> Tensor:
    """PPO's advantage: `generalized_advantages`, whitened over the batch's tokens. Groups play no part.

    Arguments and result as in `base.AdvantageEstimator`, the statistics over all ranks; `values_BT`, `gamma` and `lam`
    as in `generalized_advantages`. A token that a value which is not finite spoilt is NaN: it is in no statistic, and
    the loss leaves it out and counts it.

    Source: arXiv:1506.02438; whitened as in arXiv:1707.06347's implementations.
    """
    valid_BT = mask_BT & row_scores(rewards).isfinite()[:, None]
    advantages_BT, _ = generalized_advantages(rewards, values_BT, valid_BT, gamma=gamma, lam=lam)
    known_BT = valid_BT & advantages_BT.isfinite()
    return whiten(advantages_BT, known_BT, total=total).masked_fill(valid_BT & ~known_BT, torch.nan)
