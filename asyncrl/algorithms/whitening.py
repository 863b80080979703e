"""Whitening: mean 0 and variance 1 over all valid tokens of a batch, wherever they are."""

import torch
from torch import Tensor

from asyncrl.algorithms.base import Total, alone
from asyncrl.algorithms.masking import inside

_VARIANCE_FLOOR = 1e-8


def whiten(values_BT: Tensor, mask_BT: Tensor, *, shift_mean: bool = True, total: Total = alone) -> Tensor:
    """(x - mean) / sqrt(variance + 1e-8), with n - 1 in the variance.

    Args:
        values_BT: [B, T] float.
        mask_BT: [B, T] bool.
        shift_mean: False adds the mean back: only the scale changes.
        total: sums over the ranks that share the batch. Two passes, mean then variance, so nothing cancels.
    Returns:
        [B, T] float32, 0 at masked positions; all 0 with fewer than 2 valid values, which have no scale.
    Source: as in REINFORCE++, arXiv:2501.03262.
    """
    values = inside(values_BT, mask_BT).double()
    count, summed = total(torch.stack([mask_BT.sum().double(), values.sum()]))
    mean = summed / count.clamp(min=1)
    deviations = torch.where(mask_BT, values - mean, 0.0)
    (squares,) = total(deviations.square().sum().reshape(1))
    scale = (squares / (count - 1).clamp(min=1) + _VARIANCE_FLOOR).rsqrt()
    whitened = deviations * scale + (0.0 if shift_mean else mean)
    return torch.where(mask_BT & (count >= 2), whitened, 0.0).float()
