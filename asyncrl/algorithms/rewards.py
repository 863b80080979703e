"""What happens to rewards before advantages: KL in the reward, the overlong penalty, groups without a signal."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Generic, TypeVar

import torch
from torch import Tensor

from asyncrl.algorithms.kl import kl_estimate
from asyncrl.algorithms.masking import inside, mean_pair, row_means, upcast

GroupId = TypeVar("GroupId", bound=Hashable)


def overlong_penalty(lengths_B: Tensor, *, max_length: int, buffer: int, factor: float = 1.0) -> Tensor:
    """DAPO's soft punishment of long responses, to be added to the score.

    Args:
        lengths_B: [B] response tokens, sampled or not.
        max_length: length at which the penalty is full; longer ones get no more.
        buffer: 0 < buffer <= max_length: the penalty grows linearly over the last `buffer` tokens.
        factor: full penalty, >= 0.
    Returns:
        [B] float32 in [-factor, 0].
    Raises:
        ValueError: buffer out of range.
    Source: arXiv:2503.14476, equation 13.
    """
    if not 0 < buffer <= max_length:
        raise ValueError(
            f"overlong buffer = {buffer} must be above 0 and at most max_length = {max_length}: the penalty would be a "
            "step at the limit, or begin before the first token."
        )
    return -factor * ((lengths_B.float() - (max_length - buffer)) / buffer).clamp(0, 1)


@dataclass(frozen=True)
class ZeroVariance(Generic[GroupId]):
    """Groups whose members all have one score, so that no group-relative advantage differs from 0."""

    dropped: tuple[GroupId, ...]
    """In the order they came in."""
    counts_by_value: Mapping[float, int]
    """How many of them shared each score: all right and all wrong ask for different prompts."""


def zero_variance(scores: Mapping[GroupId, Sequence[float | None]]) -> ZeroVariance[GroupId]:
    """Which groups dynamic sampling drops: those with at least 2 scores and largest == smallest.

    Args:
        scores: by group, of the score before KL and overlong shaping. None or NaN: a member without a score.
    Returns:
        The dropped groups; a group with fewer than two scores is never among them.
    Source: arXiv:2503.14476, section 3.2.
    """
    dropped: list[GroupId] = []
    values: Counter[float] = Counter()
    for group, members in scores.items():
        known = [float(score) for score in members if score is not None and isfinite(score)]
        # max == min, not std == 0: the deviation of three rewards of 0.1 is 1.4e-17.
        if len(known) >= 2 and max(known) == min(known):
            dropped.append(group)
            values[known[0]] += 1
    return ZeroVariance(tuple(dropped), dict(values))


def subtract_kl(
    rewards_BT: Tensor, proximal_BT: Tensor, reference_BT: Tensor, mask_BT: Tensor, *, coef: float, kind: str
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Token rewards minus a KL penalty to the reference, without gradient.

    Args:
        rewards_BT: [B, T] float token rewards; kept as they are at masked positions.
        proximal_BT: [B, T] float, nats, the policy at the start of the step.
        reference_BT: [B, T] float, nats.
        mask_BT: [B, T] bool.
        coef: coefficient of this step; `KLController.updated` takes the returned mean and row count afterwards.
        kind: estimator, one of KL_ESTIMATORS.
    Returns:
        [B, T] float32 rewards, and the pair (sum over rows of the row's mean KL, rows with tokens).
    Source: arXiv:1909.08593, equation 2.
    """
    proximal_BT = upcast(proximal_BT).detach()
    finite_BT = mask_BT & (proximal_BT - reference_BT).isfinite()
    kl_BT = inside(kl_estimate(inside(proximal_BT, finite_BT), inside(reference_BT, finite_BT), kind), finite_BT)
    return upcast(rewards_BT) - coef * kl_BT, mean_pair(row_means(kl_BT, mask_BT), mask_BT.any(dim=-1))


def without_overlong(mask_BT: Tensor, cut_B: Tensor) -> Tensor:
    """Overlong filtering: the mask without rows that were cut at the length limit.

    Their scores stay in the group's statistics, so compute advantages with the mask as it was.

    Args:
        mask_BT: [B, T] bool.
        cut_B: [B] bool.
    Source: arXiv:2503.14476, section 3.4.
    """
    return mask_BT & ~torch.as_tensor(cut_B, device=mask_BT.device)[:, None]
