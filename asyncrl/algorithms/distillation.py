"""On-policy distillation: the student samples, teachers score what it sampled, and it moves towards their logprobs.

Three forms: an advantage (policy gradient on the log ratio), a loss term with a gradient of its own, and the forward KL
over a teacher's likeliest tokens.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.algorithms.base import TokenLoss, Total, alone
from asyncrl.algorithms.kl import KL_ESTIMATORS, UNBIASED_IN_A_LOSS, kl_estimate
from asyncrl.algorithms.masking import inside, mean_pair, upcast

MAX_ABS = 10.0
"""Largest distance of one token from its teacher, nats: one token that a teacher rules out must not be the step."""

TOPK = "topk"
DISTILL_ESTIMATORS = (*UNBIASED_IN_A_LOSS, TOPK)
"""What a distillation term may be: an estimate from the sampled token, or the forward KL over the teacher's top K."""


class TopkForwardKL(NamedTuple):
    """What `topk_forward_kl` gives, by position; all but `value_N` without gradient."""

    value_N: Tensor
    """float32, nats. Over part of the vocabulary, so it can be below 0."""
    student_mass_N: Tensor
    """float32, the probability that the student gives to the teacher's tokens."""
    teacher_mass_N: Tensor
    """float32, the probability that the teacher gives to them."""
    overlap_N: Tensor
    """int64, how many of them are among the student's K likeliest too."""


def topk_forward_kl(
    student_logits_NV: Tensor, teacher_logprobs_NK: Tensor, teacher_ids_NK: Tensor, *, logp_min: float | None = -MAX_ABS
) -> TopkForwardKL:
    """KL(teacher || student) over the K tokens that the teacher finds likeliest, with the student's full normaliser.

    Args:
        student_logits_NV: [N, V] float, divided by the temperature; with gradient.
        teacher_logprobs_NK: [N, K] float, nats, normalised over the teacher's whole vocabulary.
        teacher_ids_NK: [N, K] int64, below V.
        logp_min: floor of both sides, nats; a student below it gets no gradient. None: no floor.
    Source: GKD, arXiv:2306.13649, section 3 (forward KL); restricted to the teacher's top K.
    """
    student_NK = upcast(student_logits_NV).log_softmax(dim=-1).gather(-1, teacher_ids_NK)
    teacher_NK = upcast(teacher_logprobs_NK).detach()
    student_mass_N, teacher_mass_N = student_NK.detach().exp().sum(dim=-1), teacher_NK.exp().sum(dim=-1)
    best_NK = student_logits_NV.detach().topk(teacher_ids_NK.shape[-1], dim=-1).indices
    overlap_N = (best_NK[:, :, None] == teacher_ids_NK[:, None, :]).sum(dim=(1, 2))
    if logp_min is not None:
        student_NK, teacher_NK = student_NK.clamp(min=logp_min), teacher_NK.clamp(min=logp_min)
    value_N = (teacher_NK.exp() * (teacher_NK - student_NK)).sum(dim=-1)
    return TopkForwardKL(value_N, student_mass_N, teacher_mass_N, overlap_N)


def towards_teacher(
    rewards: Tensor,
    mask_BT: Tensor,
    group_ids_B: Tensor,
    *,
    logprobs_BT: Tensor,
    teacher_BT: Tensor,
    kind: str = "k1",
    max_abs: float = MAX_ABS,
    total: Total = alone,
) -> Tensor:
    """On-policy distillation's advantage: minus the estimated KL to the teacher at the token, cut at +-`max_abs`.

    With k1 the expectation of this policy gradient is that of the reverse KL to the teacher. Rewards and groups play no
    part, but a row without a score is left out as everywhere: what failed to be scored by a teacher has none.

    Arguments and result as in `base.AdvantageEstimator`, and:
        logprobs_BT: float, nats, the student's at the start of the step.
        teacher_BT: float, nats, the teacher's of the same tokens; NaN where no teacher scored them, which then get 0.
        kind: one of KL_ESTIMATORS.
        max_abs: nats, > 0.
    Source: GKD, arXiv:2306.13649, section 3 (on-policy, reverse KL); as a policy gradient: MiniLLM, arXiv:2306.08543.
    """
    scored_B = (rewards if rewards.dim() == 1 else rewards.sum(dim=-1)).isfinite()
    usable_BT = _usable(logprobs_BT, teacher_BT, mask_BT & scored_B[:, None])
    distance_BT = kl_estimate(inside(logprobs_BT, usable_BT), inside(teacher_BT, usable_BT), kind)
    return inside(-distance_BT.clamp(-max_abs, max_abs), usable_BT).detach().float()


def distillation_loss(
    logprobs_BT: Tensor, teacher_BT: Tensor, mask_BT: Tensor, *, kind: str, max_abs: float = MAX_ABS
) -> TokenLoss:
    """The estimated KL to the teacher as a loss of its own: cut at +-`max_abs`, with gradient 0 beyond.

    Args:
        logprobs_BT: [B, T] float, nats, with gradient.
        teacher_BT: [B, T] float, nats; NaN where no teacher scored the token, which then has loss 0 and stays in the
            denominators.
        mask_BT: [B, T] bool, policy tokens.
        kind: one of UNBIASED_IN_A_LOSS.
        max_abs: nats, > 0.
    Returns:
        The token loss. Metrics: distill_kl, mean over tokens with a teacher; distill_frac, the share of tokens that
        have one. A token counts as non-finite where a teacher scored it and the distance is not finite.
    Raises:
        ValueError: k1, whose gradient has mean 0 in a loss, or an unknown kind.
    Source: GKD, arXiv:2306.13649, section 3; estimators as in `kl.kl_estimate`.
    """
    if kind in KL_ESTIMATORS and kind not in UNBIASED_IN_A_LOSS:
        raise ValueError(
            f"{kind!r} cannot be a distillation loss: its gradient has mean 0, so it would pull the student nowhere. "
            f"Use 'k2', or {kind + '+'!r} for its value with the gradient of k2."
        )
    scored_BT = mask_BT & ~teacher_BT.isnan()
    usable_BT = _usable(logprobs_BT, teacher_BT, mask_BT)
    value_BT = kl_estimate(inside(logprobs_BT, usable_BT), inside(teacher_BT, usable_BT), kind)
    loss_BT = torch.where(usable_BT, value_BT.clamp(-max_abs, max_abs), 0.0)
    metrics = {"distill_kl": mean_pair(loss_BT, usable_BT), "distill_frac": mean_pair(usable_BT.float(), mask_BT)}
    return TokenLoss(loss_BT, metrics, scored_BT & ~usable_BT)


def topk_distance(student_logits_NV: Tensor, teacher_logprobs_NK: Tensor, teacher_ids_NK: Tensor) -> Tensor:
    """[N] float32 nats, `topk_forward_kl` with gradient where a teacher scored the token, NaN where none did.

    Args:
        student_logits_NV: [N, V] float, divided by the temperature.
        teacher_logprobs_NK: [N, K] float, nats; NaN where no teacher scored the token.
        teacher_ids_NK: [N, K] int64, any ids there.
    Source: GKD, arXiv:2306.13649, section 3.
    """
    scored_N = ~teacher_logprobs_NK.isnan().any(dim=-1)
    kl = topk_forward_kl(student_logits_NV[scored_N], teacher_logprobs_NK[scored_N], teacher_ids_NK[scored_N])
    # Also without any scored token the result hangs on the logits, so that every rank runs the same backward pass.
    unknown_N = torch.full_like(student_logits_NV[:, 0], torch.nan) + student_logits_NV[:, :0].sum(dim=-1)
    return unknown_N.to(kl.value_N.dtype).masked_scatter(scored_N, kl.value_N)


def topk_loss(distance_BT: Tensor, mask_BT: Tensor, *, max_abs: float = MAX_ABS) -> TokenLoss:
    """`topk_distance` as a loss: no less than 0 and no more than `max_abs`, with gradient 0 beyond.

    Args:
        distance_BT: [B, T] float, nats, with gradient; NaN where no teacher scored the token.
        mask_BT: [B, T] bool, policy tokens.
    Returns:
        As `distillation_loss`.
    Source: GKD, arXiv:2306.13649, section 3.
    """
    usable_BT = mask_BT & distance_BT.detach().isfinite()
    loss_BT = inside(distance_BT, usable_BT).clamp(0.0, max_abs)
    metrics = {"distill_kl": mean_pair(loss_BT, usable_BT), "distill_frac": mean_pair(usable_BT.float(), mask_BT)}
    return TokenLoss(loss_BT, metrics, mask_BT & distance_BT.detach().isinf())


def _usable(logprobs_BT: Tensor, teacher_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """[B, T] bool: tokens whose log ratio to the teacher is a number."""
    return mask_BT & (upcast(logprobs_BT).detach() - upcast(teacher_BT)).isfinite()
