"""The optimal token baseline: each position's returns, weighted by how far a token there moves the policy."""

import torch
from torch import Tensor

from asyncrl.algorithms.advantages import Singleton, row_scores, token_rewards
from asyncrl.algorithms.base import Total, alone
from asyncrl.algorithms.groups import Groups
from asyncrl.algorithms.masking import inside
from asyncrl.algorithms.returns import discounted_returns

_EPS = 1e-8


def optimal_token_baseline(
    rewards: Tensor,
    mask_BT: Tensor,
    group_ids_B: Tensor,
    *,
    logprobs_BT: Tensor,
    sum_pi_squared_BT: Tensor,
    weights_BT: Tensor | None = None,
    handle_zero_tail: bool = True,
    eps: float = _EPS,
    singleton: Singleton = "raw",
    total: Total = alone,
) -> Tensor:
    """The return of each token minus the baseline of least variance, one a group and position.

    A token's gradient has the squared norm e = 1 - 2 p + sum over the vocabulary of p^2, times its squared importance
    weight. With W the sum of e up to a position and G the return from it, the baseline is sum(G W) / (sum(W) + eps)
    over the group's rows that are still going on there. Rows without a token are no part of it.

    Arguments and result as in `base.AdvantageEstimator`, and

    Args:
        logprobs_BT: [B, T] float, nats, of the policy at the start of the step. Where one is not finite, e is 0.
        sum_pi_squared_BT: [B, T] float, `logprobs.sum_pi_squared` of the same policy.
        weights_BT: [B, T] float rollout weights. None: 1 everywhere.
        handle_zero_tail: where only the one longest row of a group goes on, its baseline is 0: it would else be its own
            return, so that the end of the longest response was never trained.
        eps: what keeps the quotient finite where no probability is left to move.
        singleton: what a row alone in its group gets: its return, or 0.
    Source: verl 0.9, `optimal_token_baseline`; the variance argument is that of Greensmith et al., JMLR 5 (2004).
    """
    scores_B = torch.where(mask_BT.any(dim=-1), row_scores(rewards), torch.nan)
    groups = Groups(group_ids_B, scores_B)
    valid_BT = mask_BT & groups.scored_B[:, None]
    returns_BT = discounted_returns(rewards, valid_BT, gamma=1.0)
    energy_BT = 1 - 2 * logprobs_BT.double().exp() + sum_pi_squared_BT.double()
    if weights_BT is not None:
        energy_BT = energy_BT * weights_BT.double().square()
    moved_BT = inside(inside(energy_BT, valid_BT & energy_BT.isfinite()).cumsum(dim=-1), valid_BT)
    baselines_BT = groups.each(groups.sums(returns_BT * moved_BT) / (groups.sums(moved_BT) + eps))
    if handle_zero_tail:
        baselines_BT = torch.where(_only_one_goes_on(groups, valid_BT), 0.0, baselines_BT)
    alone_B1 = groups.alone_B[:, None]
    advantages_BT = returns_BT - torch.where(alone_B1, 0.0, baselines_BT)
    if singleton == "zero":
        advantages_BT = torch.where(alone_B1, 0.0, advantages_BT)
    return inside(advantages_BT, valid_BT).float()


def optimal_token_baseline_multi_turn(
    rewards: Tensor,
    mask_BT: Tensor,
    group_ids_B: Tensor,
    *,
    logprobs_BT: Tensor,
    sum_pi_squared_BT: Tensor,
    weights_BT: Tensor | None = None,
    handle_zero_tail: bool = True,
    eps: float = _EPS,
    singleton: Singleton = "raw",
    total: Total = alone,
) -> Tensor:
    """`optimal_token_baseline` with a position counted among its row's valid tokens only.

    Rows with observations of different lengths in them are so compared at the same number of sampled tokens. Arguments
    and result as there.

    Source: verl 0.9, `tir_optimal_token_baseline`.
    """
    # Stable, so that the valid tokens of a row come first and in their order.
    order_BT = (~mask_BT).to(torch.int8).argsort(dim=-1, stable=True)
    packed_BT = optimal_token_baseline(
        token_rewards(rewards, mask_BT).gather(-1, order_BT),
        mask_BT.gather(-1, order_BT),
        group_ids_B,
        logprobs_BT=logprobs_BT.gather(-1, order_BT),
        sum_pi_squared_BT=sum_pi_squared_BT.gather(-1, order_BT),
        weights_BT=None if weights_BT is None else weights_BT.gather(-1, order_BT),
        handle_zero_tail=handle_zero_tail,
        eps=eps,
        singleton=singleton,
        total=total,
    )
    return torch.zeros_like(packed_BT).scatter(-1, order_BT, packed_BT)


def _only_one_goes_on(groups: Groups, valid_BT: Tensor) -> Tensor:
    """[B, T] bool, positions of a group's longest row, if it is the only one so long, past the end of all others."""
    positions_T = torch.arange(valid_BT.shape[1], device=valid_BT.device)
    # One column more, so that the largest of no columns at all is 0 too.
    ends_B = torch.nn.functional.pad(torch.where(valid_BT, positions_T + 1, 0), (1, 0)).amax(dim=-1).double()
    longest_B = ends_B == groups.each(groups.largest(ends_B))
    single_B = longest_B & (groups.each(groups.sums(longest_B.double())) == 1)
    second_B = groups.each(groups.largest(torch.where(longest_B, -torch.inf, ends_B)))
    return single_B[:, None] & (positions_T >= second_B[:, None])
