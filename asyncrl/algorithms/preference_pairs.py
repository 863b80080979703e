"""Which rows of a group are compared, and preference losses as advantages.

A loss of whole rows has no tokens to sum over, but its gradient has: it is the sum over rows of dL/d(logprob of the
row) times the gradient of that logprob. So the advantage of each token of a row is -dL/d(logprob of the row), as the
weights are at the start of the step, and the loss is `reinforce` summed over tokens. That is the loss's own gradient
for the one optimizer step that starts there, and of nothing for a second one, which the configuration refuses.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.algorithms.advantages import row_scores, spread
from asyncrl.algorithms.base import Total, alone
from asyncrl.algorithms.groups import Groups
from asyncrl.algorithms.masking import Metrics, row_lengths
from asyncrl.algorithms.preference import (
    PairKind,
    log_ratios,
    pair_loss,
    win_probabilities,
    win_probability_loss,
)


@dataclass(frozen=True)
class Pairs:
    """Comparisons of rows, by their places in the batch."""

    chosen_P: Tensor
    """[P] int64, a row with its group's highest score."""
    rejected_P: Tensor
    """[P] int64, a row of the same group with the lowest."""
    weights_P: Tensor
    """[P] float64, those of a group sum to 1."""
    num_compared: Tensor
    """Scalar float64, groups with a pair."""
    num_tied: Tensor
    """Scalar float64, groups of two or more rows whose scores are all equal."""


def pairs_of(scores_B: Tensor, group_ids_B: Tensor) -> Pairs:
    """One comparison a group: its best row against its worst. Equal scores are no pair.

    Where several rows share the highest or the lowest score, each of them is paired with each, and their weights share
    the group's 1: what picking one of them by chance would give on average, without its noise and in any order of rows.

    Args:
        scores_B: [B] float, NaN for a row that is not to be compared.
        group_ids_B: [B] int64, opaque.
    """
    groups = Groups(group_ids_B, scores_B)
    compared_B = groups.scored_B & ~groups.alone_B
    differs_B = compared_B & ~groups.equal_B
    best_B = differs_B & (scores_B == groups.each(groups.largest(scores_B)))
    worst_B = differs_B & (scores_B == -groups.each(groups.largest(-scores_B)))
    group_B = groups.each(torch.arange(len(groups.sizes_G), device=scores_B.device))
    num_worst_G = torch.bincount(group_B[worst_B], minlength=len(groups.sizes_G))
    sorted_worst = worst_B.nonzero().flatten()[group_B[worst_B].argsort(stable=True)]
    chosen = best_B.nonzero().flatten()
    repeats = num_worst_G[group_B[chosen]]
    within_P = torch.arange(int(repeats.sum()), device=repeats.device) - (
        repeats.cumsum(0) - repeats
    ).repeat_interleave(repeats)
    chosen_P = chosen.repeat_interleave(repeats)
    first_G = num_worst_G.cumsum(0) - num_worst_G
    num_pairs_G = num_worst_G * torch.bincount(group_B[best_B], minlength=len(groups.sizes_G))
    return Pairs(
        chosen_P=chosen_P,
        rejected_P=sorted_worst[first_G[group_B[chosen_P]] + within_P],
        weights_P=1.0 / num_pairs_G[group_B[chosen_P]].double(),
        num_compared=(num_pairs_G > 0).sum().double(),
        num_tied=_num_groups(group_B[compared_B & groups.equal_B]),
    )


def pair_gradient(
    rewards: Tensor,
    mask_BT: Tensor,
    group_ids_B: Tensor,
    *,
    logprobs_BT: Tensor,
    reference_BT: Tensor,
    kind: PairKind = "sigmoid",
    beta: float = 0.1,
    label_smoothing: float = 0.0,
    total: Total = alone,
) -> Tensor:
    """Online DPO's advantage: minus the gradient of the mean pair loss of the batch, on every token of a row.

    Arguments and result as in `base.AdvantageEstimator`; the mean is over the groups with a pair, on all ranks. Rows
    without a score, without a valid token, or with one whose log ratio is not finite, are not compared; the advantage
    of such a token is NaN, so that the loss leaves it out and counts it.

    Args:
        logprobs_BT: [B, T] float, nats, under the weights that are trained.
        reference_BT: [B, T] float, nats, under the frozen reference.
        kind, beta, label_smoothing: as in `preference.pair_loss`.
    Source: arXiv:2402.04792 (online DPO), with the loss of arXiv:2305.18290.
    """
    ratios_B, scores_B = _comparable(rewards, mask_BT, logprobs_BT, reference_BT)
    pairs = pairs_of(scores_B, group_ids_B)
    (count,) = total(pairs.num_compared.reshape(1))

    def loss(ratios_B: Tensor) -> Tensor:
        chosen_P, rejected_P = ratios_B[pairs.chosen_P], ratios_B[pairs.rejected_P]
        zeros_P = torch.zeros_like(chosen_P)
        settings = {"beta": beta, "label_smoothing": label_smoothing}
        losses_P = pair_loss(chosen_P, rejected_P, zeros_P, zeros_P, kind=kind, **settings).losses_P
        return _mean(losses_P * pairs.weights_P, count)

    return _on_tokens(-_gradient(loss, ratios_B), mask_BT, logprobs_BT, reference_BT)


def self_play_gradient(
    rewards: Tensor,
    mask_BT: Tensor,
    group_ids_B: Tensor,
    *,
    logprobs_BT: Tensor,
    sampler_BT: Tensor,
    beta: float = 0.1,
    total: Total = alone,
) -> Tensor:
    """SPIN's advantage: that of online DPO with the policy of the previous iterate, which sampled, as the reference.

    Arguments and result as in `pair_gradient`. The chosen row is the better sample: there are no demonstrations here.

    Args:
        sampler_BT: [B, T] float, nats, recorded by the server when it sampled.
    Source: arXiv:2401.01335, eq. 4.7.
    """
    return pair_gradient(
        rewards, mask_BT, group_ids_B, logprobs_BT=logprobs_BT, reference_BT=sampler_BT, beta=beta, total=total
    )


def win_probability_gradient(
    rewards: Tensor,
    mask_BT: Tensor,
    group_ids_B: Tensor,
    *,
    logprobs_BT: Tensor,
    sampler_BT: Tensor,
    eta: float = 1.0,
    total: Total = alone,
) -> Tensor:
    """SPPO's advantage: minus the gradient of its mean loss, on every token of a row.

    A row's win probability is the share of its group that it beats. Arguments and result as in `pair_gradient`; the
    mean is over the rows that have a win probability, on all ranks. A group of equal scores prefers nothing and gets 0.

    Args:
        sampler_BT: [B, T] float, nats, recorded by the server: the previous iterate, which the wins are against.
        eta: the step, as in `preference.win_probability_loss`.
    Source: arXiv:2405.00675, eq. 4.7.
    """
    ratios_B, scores_B = _comparable(rewards, mask_BT, logprobs_BT, sampler_BT)
    groups = Groups(group_ids_B, scores_B)
    rows = (groups.scored_B & ~groups.alone_B & ~groups.equal_B).nonzero().flatten()
    wins = win_probabilities(scores_B[rows], group_ids_B[rows])
    (count,) = total(torch.tensor([float(len(rows))], dtype=torch.float64, device=scores_B.device))

    def loss(ratios_B: Tensor) -> Tensor:
        return _mean(win_probability_loss(ratios_B[rows], wins, eta=eta), count)

    return _on_tokens(-_gradient(loss, ratios_B), mask_BT, logprobs_BT, sampler_BT)


def measure_pairs(
    rewards: Tensor, mask_BT: Tensor, group_ids_B: Tensor, *, beta: float, logprobs_BT: Tensor, reference_BT: Tensor
) -> Metrics:
    """How the policy's own preferences agree with the scores, as means over groups; arguments as in `pair_gradient`.

    A row's implied reward is beta times its log ratio. chosen_reward and rejected_reward: its mean over the rows of the
    pairs; margin: their difference; accuracy: pairs whose chosen row has the larger one; tie_frac: groups whose scores
    are all equal, of those with two rows that can be compared.
    """
    ratios_B, scores_B = _comparable(rewards, mask_BT, logprobs_BT, reference_BT)
    pairs = pairs_of(scores_B, group_ids_B)
    chosen_P, rejected_P = beta * ratios_B[pairs.chosen_P], beta * ratios_B[pairs.rejected_P]
    values = {
        "pref/chosen_reward": chosen_P,
        "pref/rejected_reward": rejected_P,
        "pref/margin": chosen_P - rejected_P,
        "pref/accuracy": (chosen_P > rejected_P).double(),
    }
    means = {name: ((pairs.weights_P * values_P).sum(), pairs.num_compared) for name, values_P in values.items()}
    return means | {"pref/tie_frac": (pairs.num_tied, pairs.num_compared + pairs.num_tied)}


def measure_self_play(
    rewards: Tensor, mask_BT: Tensor, group_ids_B: Tensor, *, beta: float, logprobs_BT: Tensor, sampler_BT: Tensor
) -> Metrics:
    """`measure_pairs` against the policy that sampled."""
    return measure_pairs(rewards, mask_BT, group_ids_B, beta=beta, logprobs_BT=logprobs_BT, reference_BT=sampler_BT)


def _comparable(rewards: Tensor, mask_BT: Tensor, logprobs_BT: Tensor, reference_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Log ratios, 0 where unknown, and scores, NaN for rows that cannot be compared; [B] float64 both."""
    ratios_B = log_ratios(logprobs_BT, reference_BT, mask_BT).detach()
    usable_B = ratios_B.isfinite() & (row_lengths(mask_BT) > 0)
    scores_B = torch.where(usable_B, row_scores(rewards), torch.nan)
    return torch.where(usable_B, ratios_B, 0.0), scores_B


def _mean(values: Tensor, count: Tensor) -> Tensor:
    mean: Tensor = values.sum() / count.clamp(min=1)
    return mean


def _gradient(loss: Callable[[Tensor], Tensor], ratios_B: Tensor) -> Tensor:
    """[B] float64. The estimator is called where gradients are off."""
    with torch.enable_grad():
        leaf_B = ratios_B.clone().requires_grad_()
        (gradient_B,) = torch.autograd.grad(loss(leaf_B), leaf_B)
    return gradient_B


def _on_tokens(advantages_B: Tensor, mask_BT: Tensor, logprobs_BT: Tensor, reference_BT: Tensor) -> Tensor:
    """[B, T] float32, a row's advantage on its tokens, NaN on those that keep their row from being compared."""
    known_BT = (logprobs_BT - reference_BT).isfinite()
    return spread(advantages_B, mask_BT).masked_fill(mask_BT & ~known_BT, torch.nan)


def _num_groups(group_N: Tensor) -> Tensor:
    return torch.tensor(float(len(torch.unique(group_N))), dtype=torch.float64, device=group_N.device)
