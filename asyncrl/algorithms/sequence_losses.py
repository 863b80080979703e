"""Policy losses whose ratio belongs to a whole row, given back as token losses."""

import torch
from torch import Tensor

from asyncrl.algorithms.base import TokenLoss
from asyncrl.algorithms.losses import prepare
from asyncrl.algorithms.masking import clamped, inside, row_lengths, row_means

_GSPO_LOG_RATIO_CAP = 10.0
_LOG_FLOOR = 1e-10


def gspo(
    logprobs_BT: Tensor,
    proximal_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    weights_BT: Tensor | None = None,
    *,
    low: float,
    high: float,
) -> TokenLoss:
    """GSPO in its token form: the ratio is the geometric mean of the row's token ratios, clipped as in PPO.

    Every token has the row's ratio as its value and as the gradient of its own logprob. Arguments and result as in
    `base.PolicyLoss`; the row's log ratio is capped at 10, with gradient 0 above.

    Metrics: clip_frac, tokens of rows whose clipped form won.
    Source: arXiv:2507.18071, sections 4.1 and 4.3.
    """
    tokens = prepare(logprobs_BT, proximal_BT, advantages_BT, mask_BT, weights_BT)
    # Not clamped token by token, as the row's mean is what is bounded; but one -inf would take the whole row along.
    log_ratio_BT = torch.where(tokens.log_ratio_BT.isinf(), clamped(tokens.log_ratio_BT), tokens.log_ratio_BT)
    log_row_B = inside(log_ratio_BT.detach(), mask_BT).sum(dim=-1) / row_lengths(mask_BT).clamp(min=1)
    token_BT = log_ratio_BT - log_ratio_BT.detach() + log_row_B[:, None]
    ratio_BT = token_BT.clamp(max=_GSPO_LOG_RATIO_CAP).exp()
    plain_BT = -tokens.advantages_BT * ratio_BT
    clipped_BT = -tokens.advantages_BT * ratio_BT.clamp(1 - low, 1 + high)
    metrics = {"clip_frac": tokens.mean(clipped_BT > plain_BT)}
    return tokens.finish(torch.maximum(plain_BT, clipped_BT), metrics, clipped_BT > plain_BT)


def gmpo(
    logprobs_BT: Tensor,
    proximal_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    weights_BT: Tensor | None = None,
    *,
    low: float,
    high: float,
) -> TokenLoss:
    """GMPO: one loss a row, -A times the geometric mean of its clipped token ratios.

    Arguments as in `base.PolicyLoss`; `low` and `high` bound the log ratio of each token, and rollout weights enter by
    their geometric mean. The row's loss is given back in equal parts on its tokens, so that aggregating with
    seq-mean-token-sum is the paper's mean over rows, and any other mode is wrong.

    Metrics: clip_frac and clip_frac_lower, tokens outside the range with A > 0 and with A < 0.
    Source: arXiv:2507.20673.
    """
    tokens = prepare(logprobs_BT, proximal_BT, advantages_BT, mask_BT, None)
    log_ratio_BT = clamped(tokens.log_ratio_BT)
    bounded_BT = log_ratio_BT.clamp(-low, high)
    up_BT, down_BT = tokens.advantages_BT > 0, tokens.advantages_BT < 0
    chosen_BT = torch.where(up_BT, torch.minimum(log_ratio_BT, bounded_BT), torch.maximum(log_ratio_BT, bounded_BT))
    chosen_BT = torch.where(up_BT | down_BT, chosen_BT, 0.0)
    rows_B = -row_means(tokens.advantages_BT, mask_BT) * row_means(chosen_BT, mask_BT).exp()
    if weights_BT is not None:
        log_weights_BT = (inside(weights_BT, tokens.usable_BT).detach() + _LOG_FLOOR).log()
        rows_B = rows_B * row_means(log_weights_BT, tokens.usable_BT).exp()
    outside_BT = bounded_BT != log_ratio_BT
    metrics = {
        "clip_frac": tokens.mean(up_BT & outside_BT),
        "clip_frac_lower": tokens.mean(down_BT & outside_BT),
    }
    share_B = rows_B / row_lengths(mask_BT).clamp(min=1)
    loss_BT = inside(share_B[:, None].expand(mask_BT.shape), mask_BT)
    return tokens.finish(loss_BT, metrics, outside_BT & (up_BT | down_BT))
