"""Arithmetic in which positions outside a mask count for nothing, whatever they hold."""

from typing import TypeAlias

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Largest absolute log ratio that is exponentiated: e^20 is finite in float32, and its square is too."""

Metrics: TypeAlias = dict[str, tuple[Tensor, Tensor]]
"""(numerator, count) by name: summed over micro-batches and ranks, then divided once (`measures.finish`)."""


def upcast(values: Tensor) -> Tensor:
    """At least float32: bfloat16 differences of logprobs carry 2 to 3 digits, too few to exponentiate."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def inside(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The values where the mask is True and 0 elsewhere.

    `torch.where`, not multiplication: 0 x NaN is NaN, in the forward pass and again in the backward pass.
    """
    return torch.where(mask_BT, upcast(values_BT), 0.0)


def clamped(log_ratio_BT: Tensor) -> Tensor:
    """The log ratio cut at +-LOG_RATIO_LIMIT; the gradient is 0 beyond."""
    return log_ratio_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def row_lengths(mask_BT: Tensor) -> Tensor:
    """[B] int64, valid positions of each row."""
    return mask_BT.sum(dim=-1)


def row_means(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """[B], mean over each row's valid positions; 0 for a row without any."""
    return inside(values_BT, mask_BT).sum(dim=-1) / row_lengths(mask_BT).clamp(min=1)


def mean_pair(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """(numerator, count) of a masked mean, float64 and detached: the sums of many ranks keep their digits."""
    return inside(values.detach(), mask).double().sum(), mask.sum().double()
