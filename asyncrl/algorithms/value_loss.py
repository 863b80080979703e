"""What a critic is trained with: the squared error to the returns, with steps of a bounded size."""

import torch
from torch import Tensor

from asyncrl.algorithms.base import TokenLoss
from asyncrl.algorithms.masking import inside, mean_pair


def value_loss(
    values_BT: Tensor, old_values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor, *, clip: float
) -> TokenLoss:
    """1/2 max((V - R)^2, (Vc - R)^2) with Vc = clamp(V, Vold - clip, Vold + clip).

    A value that has moved by more than `clip` towards its return has no gradient.

    Args:
        values_BT: [B, T] float, of the critic being trained, before each token; with gradient.
        old_values_BT: [B, T] float, of the critic at the start of the step, which the advantages were made with.
        returns_BT: [B, T] float, the second result of `returns.generalized_advantages`.
        mask_BT: [B, T] bool.
        clip: largest change of a value in one step, > 0, in units of reward.
    Returns:
        Token losses, to be aggregated as policy losses are. Metrics: clip_frac, tokens whose clipped form is the
        larger; nonfinite_tokens, which are left out and stay in the denominators.
    Source: arXiv:1707.06347's implementations (OpenAI baselines, ppo2); as used by verl.
    """
    old_values_BT, returns_BT = inside(old_values_BT, mask_BT).detach(), inside(returns_BT, mask_BT).detach()
    with torch.no_grad():
        plain_BT, bounded_BT = _squared_errors(values_BT, old_values_BT, returns_BT, clip)
        # Found before the pass with gradient: an overflow there would give NaN on the way back.
        usable_BT = mask_BT & plain_BT.isfinite() & bounded_BT.isfinite()
    plain_BT, bounded_BT = _squared_errors(
        inside(values_BT, usable_BT), inside(old_values_BT, usable_BT), inside(returns_BT, usable_BT), clip
    )
    nonfinite_BT = mask_BT & ~usable_BT
    return TokenLoss(
        loss_BT=inside(torch.maximum(plain_BT, bounded_BT) / 2, usable_BT),
        metrics={
            "clip_frac": mean_pair(usable_BT & (bounded_BT > plain_BT).detach(), mask_BT),
            "nonfinite_tokens": mean_pair(nonfinite_BT, mask_BT),
        },
        nonfinite_BT=nonfinite_BT,
    )


def _squared_errors(values_BT: Tensor, old_values_BT: Tensor, returns_BT: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    bounded_BT = torch.clamp(values_BT, old_values_BT - clip, old_values_BT + clip)
    return (values_BT - returns_BT).square(), (bounded_BT - returns_BT).square()
