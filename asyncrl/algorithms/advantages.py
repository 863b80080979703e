"""Advantage estimators: rewards of whole groups to one number a token."""

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from asyncrl.algorithms.base import Total, alone
from asyncrl.algorithms.groups import Groups
from asyncrl.algorithms.masking import inside, row_lengths, upcast
from asyncrl.algorithms.whitening import whiten

Singleton: TypeAlias = Literal["raw", "zero"]
"""What a row alone in its group gets: its reward as it is (the papers' codes), or 0 (it was compared with nothing)."""

EPS = 1e-6


def row_scores(rewards: Tensor) -> Tensor:
    """[B] float64 score of each row: its reward, or the sum of its token rewards, masked positions included.

    A reward on a token that is not trained still counts. A score that is not finite marks a row without a score.
    """
    scores = upcast(rewards).double()
    return scores if scores.dim() == 1 else scores.sum(dim=-1)


def token_rewards(rewards: Tensor, mask_BT: Tensor) -> Tensor:
    """[B, T] float64 token rewards; an outcome reward is put on its row's last valid token (nowhere without one)."""
    if rewards.dim() == 2:
        return upcast(rewards).double()
    last_BT = mask_BT & (mask_BT.cumsum(dim=-1) == row_lengths(mask_BT)[:, None])
    return torch.where(last_BT, upcast(rewards).double()[:, None], 0.0)


def spread(scalars_B: Tensor, mask_BT: Tensor) -> Tensor:
    """[B, T] float32: a row's scalar on each of its valid tokens, 0 elsewhere."""
    return inside(scalars_B.float()[:, None].expand(mask_BT.shape), mask_BT)


def group_relative(
    rewards: Tensor,
    mask_BT: Tensor,
    group_ids_B: Tensor,
    *,
    divide_by_std: bool = True,
    eps: float = EPS,
    singleton: Singleton = "raw",
    total: Total = alone,
) -> Tensor:
    """GRPO's advantage: reward minus the group's mean, over the group's standard deviation (Bessel) plus `eps`.

    With `divide_by_std=False` it is Dr.GRPO's, which does not weigh easy and hard questions up. Arguments and result as
    in `base.AdvantageEstimator`. A group whose rewards are all equal gets exactly 0.

    Source: arXiv:2402.03300, section 4.1.2; without the deviation: arXiv:2503.20783.
    """
    scores_B = row_scores(rewards)
    relative_B = relative_scores(Groups(group_ids_B, scores_B), scores_B, divide_by_std, eps, singleton)
    return spread(relative_B, mask_BT)


def relative_scores(groups: Groups, scores_B: Tensor, divide_by_std: bool, eps: float, singleton: Singleton) -> Tensor:
    """[B] float64 of `group_relative`: scores minus the group's mean, over its deviation plus `eps` where asked for."""
    centred_B = groups.centre(scores_B, singleton)
    if not divide_by_std:
        return centred_B
    deviations_B = groups.each(groups.variances(scores_B)).sqrt()
    return torch.where(groups.alone_B, centred_B, centred_B / (deviations_B + eps))


def scaled_by_batch(
    rewards: Tensor,
    mask_BT: Tensor,
    group_ids_B: Tensor,
    *,
    eps: float = EPS,
    singleton: Singleton = "raw",
    total: Total = alone,
) -> Tensor:
    """Lite PPO's advantage: reward minus the group's mean, over the standard deviation (Bessel) of the whole batch.

    Groups whose rewards are all but equal are so not blown up by their own small deviation. Arguments and result as in
    `base.AdvantageEstimator`; the deviation is that of all rows with a score, on all ranks.

    Source: arXiv:2508.08221.
    """
    scores_B = row_scores(rewards)
    groups = Groups(group_ids_B, scores_B)
    count, summed = total(torch.stack([groups.scored_B.sum().double(), groups.known(scores_B).sum()]))
    deviations_B = groups.known(scores_B - summed / count.clamp(min=1))
    (squares,) = total(deviations_B.square().sum().reshape(1))
    std = (squares / (count - 1).clamp(min=1)).sqrt()
    centred_B = groups.centre(scores_B, singleton)
    return spread(torch.where(groups.alone_B, centred_B, centred_B / (std + eps)), mask_BT)


def leave_one_out(
    rewards: Tensor, mask_BT: Tensor, group_ids_B: Tensor, *, singleton: Singleton = "raw", total: Total = alone
) -> Tensor:
    """RLOO's advantage: reward minus the mean reward of the group's other rows.

    Arguments and result as in `base.AdvantageEstimator`.

    Source: arXiv:2402.14740, section 3.
    """
    scores_B = row_scores(rewards)
    groups = Groups(group_ids_B, scores_B)
    sizes_B = groups.each(groups.sizes_G)
    scale_B = sizes_B / (sizes_B - 1).clamp(min=1)
    return spread(groups.centre(scores_B, singleton) * scale_B, mask_BT)


def length_weighted_baseline(
    rewards: Tensor, mask_BT: Tensor, group_ids_B: Tensor, *, singleton: Singleton = "raw", total: Total = alone
) -> Tensor:
    """OPO's advantage: reward minus the group's mean reward weighted by response length.

    Arguments and result as in `base.AdvantageEstimator`. A group without any token gets 0.

    Source: arXiv:2505.23585, section 3.
    """
    scores_B = row_scores(rewards)
    groups = Groups(group_ids_B, scores_B)
    lengths_B = row_lengths(mask_BT).double()
    weights_G = groups.sums(lengths_B)
    baselines_G = groups.sums(lengths_B * groups.known(scores_B)) / weights_G.clamp(min=1)
    advantages_B = groups.settle(scores_B - groups.each(baselines_G), scores_B, singleton)
    return spread(torch.where(groups.each(weights_G) > 0, advantages_B, 0.0), mask_BT)


def scaled_by_informative(
    rewards: Tensor,
    mask_BT: Tensor,
    group_ids_B: Tensor,
    *,
    f_norm: float = 1.0,
    singleton: Singleton = "raw",
    total: Total = alone,
) -> Tensor:
    """GPG's advantage: the centred reward times (rows in the batch) / (rows with a reward other than 0) / `f_norm`.

    Arguments and result as in `base.AdvantageEstimator`; the two counts are taken over all ranks by `total`.

    Source: arXiv:2504.02546, section 3.2.
    """
    scores_B = row_scores(rewards)
    groups = Groups(group_ids_B, scores_B)
    known_B = groups.known(scores_B)
    rows, informative = total(torch.stack([groups.scored_B.sum(), (known_B != 0).sum()]).double())
    alpha = rows / informative.clamp(min=1)
    return spread(groups.centre(scores_B, singleton) * alpha / f_norm, mask_BT)


def best_of_group(
    rewards: Tensor,
    mask_BT: Tensor,
    group_ids_B: Tensor,
    *,
    divide_by_std: bool = True,
    eps: float = EPS,
    total: Total = alone,
) -> Tensor:
    """The pass@k advantage: only a group's best row gets one, its lead over the second best; a tie gives none.

    Arguments and result as in `base.AdvantageEstimator`. A group of one gets 0.

    Source: arXiv:2503.19595.
    """
    scores_B = row_scores(rewards)
    groups = Groups(group_ids_B, scores_B)
    best_B = groups.each(groups.largest(scores_B))
    leads_B = groups.scored_B & (scores_B == best_B)
    others_B = torch.where(leads_B, -torch.inf, scores_B)
    second_B = groups.each(groups.largest(others_B))
    won_B = leads_B & (groups.each(groups.sums(leads_B.double())) == 1) & ~groups.alone_B
    advantages_B = torch.where(won_B, scores_B - torch.where(won_B, second_B, 0.0), 0.0)
    if divide_by_std:
        advantages_B = advantages_B / (groups.each(groups.variances(scores_B)).sqrt() + eps)
    return spread(advantages_B, mask_BT)


def group_baseline_whitened(
    rewards: Tensor, mask_BT: Tensor, group_ids_B: Tensor, *, singleton: Singleton = "raw", total: Total = alone
) -> Tensor:
    """REINFORCE++ with baseline: reward minus the group's mean, spread over tokens, whitened over the batch's tokens.

    Arguments and result as in `base.AdvantageEstimator`; the whitening's statistics are taken over all ranks.

    Source: arXiv:2501.03262.
    """
    scores_B = row_scores(rewards)
    groups = Groups(group_ids_B, scores_B)
    valid_BT = mask_BT & groups.scored_B[:, None]
    return whiten(spread(groups.centre(scores_B, singleton), valid_BT), valid_BT, total=total)
