"""Rejection rules: leave tokens or whole rows out of the loss when two policies disagree too much."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Literal

import torch
from torch import Tensor

from asyncrl.algorithms.masking import Metrics, clamped, inside, mean_pair, row_means


@dataclass(frozen=True)
class Rule:
    """Keep while a statistic of the clamped log ratio c = log(trained policy / sampler's policy) is within bounds."""

    level: Literal["token", "seq_sum", "seq_mean", "seq_max"]
    """token judges single tokens; the others reduce over a row's valid tokens and judge the whole row."""
    stat: Literal["k1", "k2", "k3"]
    """k1: c itself, signed; k2: c^2 / 2; k3: e^c - c - 1."""
    upper: float | None = None
    """Largest statistic kept, for k2 and k3."""
    bounds: tuple[float, float] | None = None
    """For k1: the ratios exp(statistic) that are kept, both ends included. One number h is (1 / h, h)."""

    def __post_init__(self) -> None:
        signed = self.stat == "k1"
        if signed != (self.bounds is not None) or signed == (self.upper is not None):
            raise ValueError(f"A k1 rule takes bounds and no upper, k2 and k3 take upper and no bounds; got {self}.")
        if self.bounds is not None and not 0 < self.bounds[0] <= self.bounds[1]:
            raise ValueError(f"bounds of a ratio must be 0 < low <= high, got {self.bounds}: nothing would be kept.")
        if signed and self.level == "seq_max":
            raise ValueError("seq_max takes k2 or k3: the largest signed statistic misses a token that is far too low.")

    def keeps(self, log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """[B, T] bool; says nothing of masked positions."""
        c_BT = clamped(log_ratio_BT)
        if self.stat == "k1":
            stat_BT = c_BT
        elif self.stat == "k2":
            stat_BT = c_BT.square() / 2
        else:
            stat_BT = c_BT.exp() - c_BT - 1
        stat_BT = inside(stat_BT, mask_BT)
        if self.level == "seq_sum":
            stat_BT = stat_BT.sum(dim=-1, keepdim=True)
        elif self.level == "seq_mean":
            stat_BT = row_means(stat_BT, mask_BT)[:, None]
        elif self.level == "seq_max" and stat_BT.shape[1]:
            stat_BT = stat_BT.amax(
                dim=-1, keepdim=True
            )  # k2 and k3 are >= 0, so the zeros at masked positions never win
        if self.bounds is not None:
            return (stat_BT >= log(self.bounds[0])) & (stat_BT <= log(self.bounds[1]))
        return stat_BT <= (torch.inf if self.upper is None else self.upper)


def reject(log_ratio_BT: Tensor, mask_BT: Tensor, rules: Sequence[Rule]) -> tuple[Tensor, Metrics]:
    """Which valid tokens all rules keep.

    Args:
        log_ratio_BT: [B, T] float, log of the trained policy over the sampler's, without NaN at valid positions.
        mask_BT: [B, T] bool. A token that is False here adds nothing to a row's statistic.
        rules: applied one by one to the unrejected mask, then and-ed.
    Returns:
        [B, T] bool, and the metrics reject/token_frac (of valid tokens) and reject/seq_frac (rows with a rejected token
        among rows with tokens).
    Source: verl 0.9, rollout_correction (masked importance sampling, by token, row and geometric mean).
    """
    log_ratio_BT = inside(log_ratio_BT, mask_BT)
    keep_BT = mask_BT
    for rule in rules:
        keep_BT = keep_BT & rule.keeps(log_ratio_BT, mask_BT)
    rejected_BT = mask_BT & ~keep_BT
    return keep_BT, {
        "reject/token_frac": mean_pair(rejected_BT, mask_BT),
        "reject/seq_frac": mean_pair(rejected_BT.any(dim=-1), mask_BT.any(dim=-1)),
    }


def minimum_variance_kept(trainer_BT: Tensor, sampler_BT: Tensor, mask_BT: Tensor, *, threshold: float) -> Tensor:
    """M2PO: drop the tokens of largest squared log ratio until the mean over the rest is below a threshold.

    Args:
        trainer_BT: [B, T] float, nats, of the whole mini-batch (a micro-batch would be cut at another point).
        sampler_BT: [B, T] float, nats.
        mask_BT: [B, T] bool.
        threshold: > 0, of the second moment of the log ratio.
    Returns:
        [B, T] bool. At least one valid token stays, if there is any whose log ratio is not NaN. Like a rejection it
        leaves the denominators as they are.
    Source: arXiv:2510.01161, section 4.
    """
    difference_BT = trainer_BT.double() - sampler_BT.double()
    known_BT = mask_BT & ~difference_BT.isnan()
    moments = difference_BT[known_BT].square()
    ordered, order = moments.sort(stable=True)
    # Means of the smallest k never fall as k grows, so the k that fit are the first ones.
    fits = ordered.cumsum(0) / torch.arange(1, len(ordered) + 1, device=ordered.device) < threshold
    stay = torch.zeros_like(fits)
    stay[order[: max(int(fits.sum()), 1)]] = True
    keep_BT = torch.zeros_like(mask_BT)
    keep_BT[known_BT] = stay
    return keep_BT


def minimum_variance_selected(
    logprobs_N: Tensor,
    proximal_N: Tensor,
    sampler_N: Tensor,
    advantages_N: Tensor,
    *,
    threshold: float,
    generator: torch.Generator,
) -> Tensor:
    """The tokens that M2PO rejects: those that `minimum_variance_kept` drops, by proximal policy and sampler.

    Arguments and result as in `base.SelectionRule`; nothing is drawn.

    Source: arXiv:2510.01161, section 4.
    """
    all_N = torch.ones_like(proximal_N, dtype=torch.bool)
    return ~minimum_variance_kept(proximal_N, sampler_N, all_N, threshold=threshold)
