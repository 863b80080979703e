"""Clip-Cov and KL-Cov: the few tokens whose likely rise would cost most entropy are held back.

Which ones is decided over a whole mini-batch, on all ranks, before its first backward pass (the two rules); the losses
take the decision as it is, so no split changes it.
"""

import torch
from torch import Tensor

from asyncrl.algorithms.base import TokenLoss
from asyncrl.algorithms.losses import prepare
from asyncrl.algorithms.masking import clamped


def covariances(logprobs_N: Tensor, advantages_N: Tensor) -> Tensor:
    """(A - mean A)(logprob - mean logprob) of each token; its mean is how fast the step lowers the entropy.

    Args:
        logprobs_N: [N] float, nats, of all tokens of a mini-batch, on all ranks.
        advantages_N: [N] float.
    Returns:
        [N] float64. NaN for a token of which either is not finite; it is in neither mean.
    Source: arXiv:2505.22617.
    """
    logprobs_N, advantages_N = logprobs_N.double(), advantages_N.double()
    known_N = logprobs_N.isfinite() & advantages_N.isfinite()
    logprobs_N = torch.where(known_N, logprobs_N, torch.nan)
    advantages_N = torch.where(known_N, advantages_N, torch.nan)
    return (advantages_N - advantages_N.nanmean()) * (logprobs_N - logprobs_N.nanmean())


def clip_cov_selected(
    logprobs_N: Tensor,
    proximal_N: Tensor,
    sampler_N: Tensor,
    advantages_N: Tensor,
    *,
    share: float,
    lower: float,
    upper: float,
    low: float,
    high: float,
    generator: torch.Generator,
) -> Tensor:
    """Clip-Cov's tokens: a random `share` of the mini-batch, drawn among those of high covariance.

    Arguments and result as in `base.SelectionRule`, and

    Args:
        share: of all tokens, rounded down, and at least one. Where fewer qualify, all of them.
        lower: a candidate's covariance is above it, and
        upper: below it.
        low: a token that PPO's clip already holds back is none; its range is 1 - low to 1 + high.
        high: see low.
    Source: arXiv:2505.22617 (Clip-Cov).
    """
    cov_N = covariances(logprobs_N, advantages_N)
    ratio_N = clamped(logprobs_N.double() - proximal_N.double()).exp()
    beyond_N = torch.where(advantages_N > 0, ratio_N > 1 + high, ratio_N < 1 - low) & (advantages_N != 0)
    candidates = ((cov_N > lower) & (cov_N < upper) & ~beyond_N).nonzero().flatten()
    order = torch.randperm(len(candidates), generator=generator).to(candidates.device)
    return _marked(candidates[order], share, logprobs_N)


def kl_cov_selected(
    logprobs_N: Tensor,
    proximal_N: Tensor,
    sampler_N: Tensor,
    advantages_N: Tensor,
    *,
    share: float,
    generator: torch.Generator,
) -> Tensor:
    """KL-Cov's tokens: the `share` of the mini-batch with the largest covariance, rounded down, and at least one.

    Arguments and result as in `base.SelectionRule`; of equal ones the first are taken, and nothing is drawn.

    Source: arXiv:2505.22617 (KL-Cov).
    """
    cov_N = covariances(logprobs_N, advantages_N)
    known = cov_N.isfinite().nonzero().flatten()
    order = cov_N[known].argsort(descending=True, stable=True)
    return _marked(known[order], share, logprobs_N)


def clip_cov(
    logprobs_BT: Tensor,
    proximal_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    weights_BT: Tensor | None = None,
    *,
    selected_BT: Tensor,
    low: float,
    high: float,
) -> TokenLoss:
    """Clip-Cov: PPO's clipped surrogate without dual clip, and 0 for the selected tokens.

    Arguments and result as in `base.PolicyLoss`; `selected_BT` [B, T] bool is what `clip_cov_selected` chose, and stays
    in the denominators.

    Metrics: clip_frac, selected tokens.
    Source: arXiv:2505.22617 (Clip-Cov).
    """
    tokens = prepare(logprobs_BT, proximal_BT, advantages_BT, mask_BT, weights_BT)
    ratio_BT = clamped(tokens.log_ratio_BT).exp()
    plain_BT = -tokens.advantages_BT * ratio_BT
    clipped_BT = -tokens.advantages_BT * ratio_BT.clamp(1 - low, 1 + high)
    loss_BT = torch.where(selected_BT, 0.0, torch.maximum(plain_BT, clipped_BT))
    return tokens.finish(loss_BT, {"clip_frac": tokens.mean(selected_BT)}, selected_BT | (clipped_BT > plain_BT))


def kl_cov(
    logprobs_BT: Tensor,
    proximal_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    weights_BT: Tensor | None = None,
    *,
    selected_BT: Tensor,
    penalty: float,
) -> TokenLoss:
    """KL-Cov: -A r without any clip, and for the selected tokens `penalty` x |log r| on top.

    Arguments and result as in `base.PolicyLoss`; `selected_BT` [B, T] bool is what `kl_cov_selected` chose.

    Metrics: mean_abs_log_ratio, over all tokens.
    Source: arXiv:2505.22617 (KL-Cov).
    """
    tokens = prepare(logprobs_BT, proximal_BT, advantages_BT, mask_BT, weights_BT)
    log_ratio_BT = clamped(tokens.log_ratio_BT)
    distance_BT = log_ratio_BT.abs()
    loss_BT = -tokens.advantages_BT * log_ratio_BT.exp() + torch.where(selected_BT, penalty * distance_BT, 0.0)
    return tokens.finish(loss_BT, {"mean_abs_log_ratio": tokens.mean(distance_BT)})


def _marked(ordered: Tensor, share: float, tokens_N: Tensor) -> Tensor:
    """[N] bool, True at the first places of `ordered`: `share` of all tokens, and at least one."""
    marked_N = torch.zeros_like(tokens_N, dtype=torch.bool)
    marked_N[ordered[: max(int(share * len(tokens_N)), 1)]] = True
    return marked_N
