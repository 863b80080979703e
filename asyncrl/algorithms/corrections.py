"""Off-policy correction: what a token counts for when another policy than the trained one sampled it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from asyncrl.algorithms.base import Correction, CorrectionRule, Total
from asyncrl.algorithms.masking import (
    Metrics,
    clamped,
    inside,
    mean_pair,
    row_means,
    upcast,
)
from asyncrl.algorithms.rejection import Rule, reject

_INFINITE = 1e6
"""Stands for an infinite log ratio in a row's sum: beyond every clamp, and finite when added up."""
_SMALLEST_DIVISOR = 1e-8


@dataclass(frozen=True)
class Weighting:
    """How a log ratio becomes an importance weight.

    Source: truncation, V-trace arXiv:1802.01561 section 4.1 (the source calls `upper` rho-bar); mask, IcePop.
    """

    level: Literal["token", "sequence"]
    """sequence: every token of a row has the ratio of the whole row."""
    mode: Literal["truncate", "mask"]
    """truncate: cut at the bounds; mask: 0 outside them (the bounds themselves are inside)."""
    upper: float
    lower: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= (self.lower or 0.0) < self.upper:
            raise ValueError(
                f"importance weights need 0 <= lower < upper, got {self.lower} and {self.upper}: every weight would be "
                "the same or 0, and the loss would not be the one asked for. Raise algorithm.correction_cap."
            )


def correct(
    trainer_BT: Tensor,
    sampler_BT: Tensor,
    mask_BT: Tensor,
    *,
    weighting: Weighting | None,
    rules: Sequence[Rule] = (),
) -> Correction:
    """Importance weights of the trainer's policy over the sampler's, and which tokens are kept.

    Args:
        trainer_BT: [B, T] float, nats: the proximal policy's logprobs, or in bypass mode the current ones.
        sampler_BT: [B, T] float, nats, recorded by the server when it sampled the tokens.
        mask_BT: [B, T] bool, policy tokens.
        weighting: None: every weight is 1.
        rules: a token is kept if all of them keep it.
    Returns:
        Detached. A log ratio of -inf or +inf is clamped to -20 or 20; NaN has weight 0, is rejected and counted.
    Source: V-trace, arXiv:1802.01561, section 4.1; verl 0.9, rollout_correction.
    """
    difference_BT = (upcast(trainer_BT) - upcast(sampler_BT)).detach()
    known_BT = mask_BT & ~difference_BT.isnan()
    log_ratio_BT = inside(difference_BT, known_BT).clamp(-_INFINITE, _INFINITE)
    metrics: Metrics = {}
    extremes: dict[str, Tensor] = {}
    weights_BT = known_BT.float()
    if weighting is not None:
        ratio_BT = _ratio(log_ratio_BT, known_BT, weighting)
        weights_BT = _bounded(ratio_BT, known_BT, weighting)
        metrics, extremes = _weight_metrics(weights_BT, ratio_BT, known_BT, weighting)
    keep_BT = known_BT
    if rules:
        keep_BT, rejection_metrics = reject(log_ratio_BT, known_BT, rules)
        metrics |= rejection_metrics
    return Correction(weights_BT, keep_BT, metrics, mask_BT & ~known_BT, extremes)


def normalized(weights_BT: Tensor, mean: float | Tensor) -> Tensor:
    """Weights divided by their mean over the whole mini-batch on all ranks, unless that is 0 (at most 1e-8).

    The mean is the metric weights/mean for level token and weights/seq_mean for level sequence, summed over
    micro-batches and ranks before it is divided: a mean per micro-batch would depend on the split.

    Source: self-normalised importance sampling, Owen 2013, section 9.2; verl 0.9, rollout_correction.
    """
    mean = torch.as_tensor(mean, dtype=torch.float32, device=weights_BT.device)
    return torch.where(mean > _SMALLEST_DIVISOR, weights_BT / mean.clamp(min=_SMALLEST_DIVISOR), weights_BT)


def mean_weight_of(rule: CorrectionRule, grids: Iterable[tuple[Tensor, Tensor, Tensor]], total: Total) -> Tensor:
    """Scalar float64: what `normalized` divides by, the mean weight over a mini-batch given in parts.

    Args:
        rule: `correct` with its settings.
        grids: (trainer_BT, sampler_BT, mask_BT) of each part, in whole rows.
        total: sums over ranks.
    """
    weighting = rule.keywords["weighting"] if isinstance(rule, partial) else None
    by_row = isinstance(weighting, Weighting) and weighting.level == "sequence"
    sums = torch.zeros(2, dtype=torch.float64)
    for trainer_BT, sampler_BT, mask_BT in grids:
        pair = rule(trainer_BT, sampler_BT, mask_BT).metrics["weights/seq_mean" if by_row else "weights/mean"]
        sums += torch.stack([part.detach().double().cpu() for part in pair])
    sums = total(sums)
    return sums[0] / sums[1].clamp(min=1)


def _ratio(log_ratio_BT: Tensor, known_BT: Tensor, weighting: Weighting) -> Tensor:
    if weighting.level == "sequence":
        log_ratio_BT = log_ratio_BT.sum(dim=-1, keepdim=True).expand(known_BT.shape)
    return inside(clamped(log_ratio_BT).exp(), known_BT)


def _bounded(ratio_BT: Tensor, known_BT: Tensor, weighting: Weighting) -> Tensor:
    lower = weighting.lower or 0.0
    if weighting.mode == "truncate":
        return inside(ratio_BT.clamp(lower, weighting.upper), known_BT)
    return inside(ratio_BT, known_BT & (ratio_BT >= lower) & (ratio_BT <= weighting.upper))


def _weight_metrics(
    weights_BT: Tensor, ratio_BT: Tensor, known_BT: Tensor, weighting: Weighting
) -> tuple[Metrics, dict[str, Tensor]]:
    """Of the applied weights; names with an underscore are sums from which `measures.finish` makes std and ess."""
    row_B = known_BT.any(dim=-1)
    means_B = row_means(weights_BT, known_BT)
    low = 1 / weighting.upper if weighting.lower is None else weighting.lower
    # A row has one ratio at level sequence, and counts once in fractions of bounds, whatever its length.
    by_row = weighting.level == "sequence"
    ratios = ratio_BT.amax(dim=-1) if by_row and ratio_BT.shape[1] else ratio_BT
    which = row_B if by_row and ratio_BT.shape[1] else known_BT
    metrics = {
        "weights/mean": mean_pair(weights_BT, known_BT),
        "weights/_square": mean_pair(weights_BT.double().square(), known_BT),
        "weights/frac_high": mean_pair(ratios > weighting.upper, which),
        "weights/frac_low": mean_pair(ratios < low, which),
        "weights/seq_mean": mean_pair(means_B, row_B),
        "weights/_seq_square": mean_pair(means_B.double().square(), row_B),
    }
    if weighting.mode == "mask":
        metrics["weights/frac_out_of_bounds"] = mean_pair(known_BT & (weights_BT == 0), known_BT)
    extreme_BT = ratio_BT if by_row else weights_BT
    return metrics, {
        "weights/max": largest(extreme_BT, known_BT),
        "weights/min": -largest(-extreme_BT, known_BT),
        "weights/seq_max": largest(means_B, row_B),
        "weights/seq_min": -largest(-means_B, row_B),
    }


def largest(values: Tensor, mask: Tensor) -> Tensor:
    """Scalar float32, largest value where the mask is True; -inf if it is nowhere, so that any other one wins."""
    values = torch.where(mask, values.float(), -torch.inf).reshape(-1)
    return torch.cat([values, values.new_full((1,), -torch.inf)]).amax()
