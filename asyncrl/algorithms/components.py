"""Advantages of several rewards at once, each compared in its group by itself."""

from collections.abc import Sequence

import torch
from torch import Tensor

from asyncrl.algorithms.advantages import EPS, Singleton, relative_scores, row_scores, spread
from asyncrl.algorithms.base import Total, alone
from asyncrl.algorithms.groups import Groups
from asyncrl.algorithms.whitening import whiten


def decoupled_components(
    rewards: Tensor,
    mask_BT: Tensor,
    group_ids_B: Tensor,
    *,
    components_KB: Tensor,
    weights: Sequence[float] | None = None,
    divide_by_std: bool = True,
    eps: float = EPS,
    singleton: Singleton = "raw",
    total: Total = alone,
) -> Tensor:
    """GDPO's advantage: the weighted sum of each component's group-relative advantage, whitened over the batch.

    Normalised one by one, two rows with the same sum of different components are still told apart. Arguments and
    result as in `base.AdvantageEstimator`; `rewards` only says which rows have a score, and

    Args:
        components_KB: [K, B] float. NaN: the row has no such component, is left out of its statistics and gets nothing
            from it; a row that has none at all gets 0.
        weights: K of them. None: 1 each.
        divide_by_std: divide each component by its deviation in the group (Bessel) plus `eps`.
    Raises:
        ValueError: there are not as many weights as components, or no scored row on any rank has a component.
    Source: arXiv:2601.05242.
    """
    if weights is None:
        weights = [1.0] * len(components_KB)
    if len(weights) != len(components_KB):
        raise ValueError(
            f"{len(weights)} weights for {len(components_KB)} reward components: one would be weighed as another. Give "
            "one weight a component, in the order of the components."
        )
    scored_B = row_scores(rewards).isfinite()
    components_KB = torch.where(scored_B, components_KB.double(), torch.nan)
    known_B = components_KB.isfinite().any(dim=0)
    scored, known = total(torch.stack([scored_B.sum(), known_B.sum()]).double())
    if scored > 0 and known == 0:
        raise ValueError(
            f"{scored:.0f} rows have a reward, but none has parts of it, which are what is compared here: nothing "
            "would be trained. Let the environment's rewards have parts, or set algorithm.adv_estimator to one that "
            "needs none (grpo)."
        )
    summed_B = torch.zeros_like(scored_B, dtype=torch.float64)
    for weight, scores_B in zip(weights, components_KB, strict=True):
        groups = Groups(group_ids_B, scores_B)
        summed_B = summed_B + weight * relative_scores(groups, scores_B, divide_by_std, eps, singleton)
    valid_BT = mask_BT & known_B[:, None]
    return whiten(spread(summed_B, valid_BT), valid_BT, total=total)
