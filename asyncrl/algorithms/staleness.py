"""Tokens of older versions: how old a batch is, and the proximal policy between theirs and the current one."""

from typing import Literal

import torch
from torch import Tensor

from asyncrl.algorithms.corrections import largest
from asyncrl.algorithms.masking import Metrics, mean_pair, upcast

_PROBABILITY_FLOOR = 1e-10


def lag_metrics(versions_BT: Tensor, mask_BT: Tensor, *, current: int) -> tuple[Metrics, dict[str, Tensor]]:
    """Age of the tokens of a batch.

    Args:
        versions_BT: [B, T] int64, effective version number that sampled each token (on one branch, its number).
        mask_BT: [B, T] bool. Rows without valid tokens are left out.
        current: number of the version being trained.
    Returns:
        Metrics lag_mean (over tokens) and span_mean (over rows: newest - oldest + 1), and the extremes lag_max,
        lag_min, span_max and oldest_lag_max; all named stale/... .
    Source: AReaL arXiv:2505.24298 (staleness).
    """
    lags_BT = torch.where(mask_BT, current - versions_BT, 0)
    row_B = mask_BT.any(dim=-1)
    far = torch.iinfo(torch.int32).max
    padded_BT = torch.nn.functional.pad(lags_BT, (0, 1))
    valid_BT = torch.nn.functional.pad(mask_BT, (0, 1))
    oldest_B = torch.where(valid_BT, padded_BT, -far).amax(dim=-1)
    newest_B = torch.where(valid_BT, padded_BT, far).amin(dim=-1)
    spans_B = torch.where(row_B, oldest_B - newest_B + 1, 0)
    metrics = {
        "stale/lag_mean": mean_pair(lags_BT.double(), mask_BT),
        "stale/span_mean": mean_pair(spans_B.double(), row_B),
    }
    return metrics, {
        "stale/lag_max": largest(lags_BT, mask_BT),
        "stale/lag_min": -largest(-lags_BT, mask_BT),
        "stale/span_max": largest(spans_B, row_B),
        "stale/oldest_lag_max": largest(oldest_B, row_B),
    }


def proximal_between(
    sampler_BT: Tensor,
    logprobs_BT: Tensor,
    lags_BT: Tensor,
    *,
    method: Literal["loglinear", "linear"],
) -> Tensor:
    """`proximal_logprobs` by lag: [B, T] int64 versions between the sampler's weights and those being trained.

    Source: as `proximal_logprobs`, AReaL arXiv:2505.24298, section 5.2.
    """
    # Any current number gives the same shares; the versions must not be negative, which stands for a prompt.
    current = int(lags_BT.max()) if lags_BT.numel() else 0
    return proximal_logprobs(sampler_BT, logprobs_BT, current - lags_BT, current=current, method=method)


def proximal_logprobs(
    sampler_BT: Tensor,
    logprobs_BT: Tensor,
    versions_BT: Tensor,
    *,
    current: int,
    method: Literal["loglinear", "linear"] = "loglinear",
) -> Tensor:
    """Logprobs of the version before the current one, interpolated instead of computed with another forward pass.

    Args:
        sampler_BT: [B, T] float, nats, of the version that sampled each token.
        logprobs_BT: [B, T] float, nats, of the current version.
        versions_BT: [B, T] int64, number of the sampling version; negative where nothing was sampled.
        current: number of the current version; the result stands for number current - 1.
        method: loglinear interpolates logprobs, linear interpolates probabilities.
    Returns:
        [B, T] float32, detached; the sampler's own where a token is not older than the version before.
    Source: AReaL arXiv:2505.24298, section 5.2 (the three policies).
    """
    sampler_BT, logprobs_BT = upcast(sampler_BT).detach(), upcast(logprobs_BT).detach()
    age_BT = (current - versions_BT).float()
    share_BT = ((age_BT - 1) / age_BT.clamp(min=1)).clamp(0, 1)
    share_BT = torch.where((versions_BT >= current) | (versions_BT < 0), 0.0, share_BT)
    if method == "loglinear":
        mixed_BT = sampler_BT + share_BT * (logprobs_BT - sampler_BT)
    else:
        mixed_BT = ((1 - share_BT) * sampler_BT.exp() + share_BT * logprobs_BT.exp() + _PROBABILITY_FLOOR).log()
    # At share 0 the interpolation would turn an infinite difference into NaN, and the floor would lift small ones.
    return torch.where(share_BT == 0, sampler_BT, mixed_BT)
