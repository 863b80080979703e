"""Preference losses on whole rows: of a chosen and a rejected row (DPO and its kin), and of a row's win probability.

Names ending in _P have one entry a pair. Sums over tokens are float64: a difference of four sums of hundreds of
logprobs keeps its digits.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from asyncrl.algorithms.masking import inside

PairKind: TypeAlias = Literal["sigmoid", "ipo", "hinge", "sppo_hard"]
PAIR_KINDS: tuple[PairKind, ...] = get_args(PairKind)


@dataclass(frozen=True)
class PairLoss:
    """Losses of pairs, with gradient, and the rewards that the policy's own logprobs imply, detached."""

    losses_P: Tensor
    """[P] float64, to be minimised."""
    chosen_rewards_P: Tensor
    """[P] float64, beta times the chosen row's log ratio to the reference."""
    rejected_rewards_P: Tensor


def log_ratios(logprobs_BT: Tensor, reference_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """[B] float64, nats: log of a row's probability over that under the reference, summed over its valid tokens.

    With gradient. 0 for a row without valid tokens; not finite for a row with a valid token that is not.
    """
    return (inside(logprobs_BT, mask_BT).double() - inside(reference_BT, mask_BT).double()).sum(dim=-1)


def pair_loss(
    chosen_P: Tensor,
    rejected_P: Tensor,
    reference_chosen_P: Tensor,
    reference_rejected_P: Tensor,
    *,
    kind: PairKind,
    beta: float,
    label_smoothing: float = 0.0,
) -> PairLoss:
    """Loss of each pair, by the log ratios to the reference a of its chosen and b of its rejected row, z = a - b.

        sigmoid    -(1 - e) log sigma(beta z) - e log sigma(-beta z), e the label smoothing
        ipo        (z - 1 / (2 beta))^2
        hinge      max(0, 1 - beta z)
        sppo_hard  (a - 1 / (2 beta))^2 + (b + 1 / (2 beta))^2

    Args:
        chosen_P: [P] float, nats, logprobs of whole chosen rows under the policy, with gradient.
        rejected_P: [P] float, nats, of the rejected ones.
        reference_chosen_P: [P] float, nats, under the reference.
        reference_rejected_P: [P] float, nats.
        kind: which of the four.
        beta: strength of the pull to the reference, > 0.
        label_smoothing: share of labels taken to be wrong, in [0, 0.5); sigmoid only.
    Raises:
        ValueError: unknown kind, beta that is not positive, or label smoothing with a loss that has none.
    Source: DPO arXiv:2305.18290, eq. 7; IPO arXiv:2310.12036, eq. 17; hinge (SLiC) arXiv:2305.10425; hard SPPO
        arXiv:2405.00675, eq. 4.7 with win probabilities 1 and 0 and eta = 1 / beta. SPIN, arXiv:2401.01335, is
        sigmoid with the previous iterate as the reference.
    """
    if beta <= 0:
        raise ValueError(f"beta = {beta} must be positive: it is the pull to the reference, and 1 / beta the target.")
    if label_smoothing and kind != "sigmoid":
        raise ValueError(
            f"label_smoothing = {label_smoothing} has no effect with kind = {kind!r}; only sigmoid has it."
        )
    chosen_ratio_P = chosen_P.double() - reference_chosen_P.double().detach()
    rejected_ratio_P = rejected_P.double() - reference_rejected_P.double().detach()
    margin_P = chosen_ratio_P - rejected_ratio_P
    if kind == "sigmoid":
        right_P, wrong_P = logsigmoid(beta * margin_P), logsigmoid(-beta * margin_P)
        losses_P = -(1 - label_smoothing) * right_P - label_smoothing * wrong_P
    elif kind == "ipo":
        losses_P = (margin_P - 1 / (2 * beta)).square()
    elif kind == "hinge":
        losses_P = (1 - beta * margin_P).clamp(min=0)
    elif kind == "sppo_hard":
        losses_P = (chosen_ratio_P - 1 / (2 * beta)).square() + (rejected_ratio_P + 1 / (2 * beta)).square()
    else:
        raise ValueError(f"kind = {kind!r} is not a pair loss; choose one of {', '.join(PAIR_KINDS)}.")
    return PairLoss(losses_P, beta * chosen_ratio_P.detach(), beta * rejected_ratio_P.detach())


def win_probability_loss(
    log_ratios_B: Tensor, win_probabilities_B: Tensor, *, eta: float, center: float = 0.5
) -> Tensor:
    """[B] float64 SPPO's loss of each row: (log ratio - eta (P - center))^2.

    Args:
        log_ratios_B: [B] float, nats, of whole rows to the policy of the previous iterate, with gradient.
        win_probabilities_B: [B] float, probability that the row wins against a sample of that policy.
        eta: the step: what a certain win moves the row's logprob by is eta / 2.
        center: 0.5 for probabilities, 0 for scores that are centred already.
    Source: arXiv:2405.00675, eq. 4.7.
    """
    return (log_ratios_B.double() - eta * (win_probabilities_B.double().detach() - center)).square()


def win_probabilities(scores_B: Tensor, group_of_B: Tensor) -> Tensor:
    """[B] float64 share of the group's other rows that a row's score beats, ties counting half.

    Args:
        scores_B: [B] float, finite.
        group_of_B: [B] int64, opaque.
    Returns:
        NaN for a row that is alone in its group: it was compared with nothing.
    Source: the empirical estimate of arXiv:2405.00675, section 4.2, with scores as the judge.
    """
    _, place_B = torch.unique(scores_B, return_inverse=True)
    _, group_B, sizes_G = torch.unique(group_of_B, return_inverse=True, return_counts=True)
    # Sorted by group, then by score: what stands before a row in its group is what it beats.
    levels = int(place_B.max()) + 1 if len(place_B) else 1
    _, level_B, counts_L = torch.unique(group_B * levels + place_B, return_inverse=True, return_counts=True)
    before_L = counts_L.cumsum(0) - counts_L
    starts_G = sizes_G.cumsum(0) - sizes_G
    beaten_B = before_L[level_B] - starts_G[group_B] + (counts_L[level_B] - 1) / 2
    others_B = sizes_G[group_B] - 1
    return torch.where(others_B > 0, beaten_B.double() / others_B.clamp(min=1), torch.nan)
