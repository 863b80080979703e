"""How far the sampler's logprobs are from the trainer's; at lag 0 that measures the two engines alone."""

import torch
from torch import Tensor

from asyncrl.algorithms.corrections import largest
from asyncrl.algorithms.masking import Metrics, clamped, inside, mean_pair, row_means, upcast


def mismatch(trainer_BT: Tensor, sampler_BT: Tensor, mask_BT: Tensor) -> tuple[Metrics, dict[str, Tensor]]:
    """Divergences and perplexities of two policies on the sampled tokens.

    Args:
        trainer_BT: [B, T] float, nats, under the weights being trained (or the proximal ones).
        sampler_BT: [B, T] float, nats, as recorded when the tokens were sampled.
        mask_BT: [B, T] bool; and it with a lag to measure that lag's tokens only.
    Returns:
        Metrics over valid tokens (kl_rollout_train, k3_rollout_train, chi2_token) and over rows that have any (the
        perplexities, chi2_seq), and the extremes of log_ppl_diff; all named mismatch/... . Tokens whose log ratio is
        not finite are left out.
    Source: verl 0.9, rollout_correction; the estimators of KL, J. Schulman 2020.
    """
    trainer_BT, sampler_BT = upcast(trainer_BT).detach(), upcast(sampler_BT).detach()
    finite_BT = mask_BT & trainer_BT.isfinite() & sampler_BT.isfinite()
    log_ratio_BT = inside(trainer_BT, finite_BT) - inside(sampler_BT, finite_BT)
    c_BT = clamped(log_ratio_BT).double()
    row_B = finite_BT.any(dim=-1)
    trainer_B, sampler_B = row_means(trainer_BT, finite_BT).double(), row_means(sampler_BT, finite_BT).double()
    gap_B = sampler_B - trainer_B
    sums_B = clamped(log_ratio_BT.sum(dim=-1)).double()
    metrics = {
        "mismatch/kl_rollout_train": mean_pair(-log_ratio_BT, finite_BT),
        "mismatch/k3_rollout_train": mean_pair(c_BT.expm1() - c_BT, finite_BT),
        "mismatch/chi2_token": mean_pair((2 * c_BT).expm1(), finite_BT),
        "mismatch/chi2_seq": mean_pair((2 * sums_B).expm1(), row_B),
        "mismatch/train_ppl": mean_pair((-trainer_B).exp(), row_B),
        "mismatch/rollout_ppl": mean_pair((-sampler_B).exp(), row_B),
        "mismatch/train_log_ppl": mean_pair(-trainer_B, row_B),
        "mismatch/rollout_log_ppl": mean_pair(-sampler_B, row_B),
        "mismatch/log_ppl_diff": mean_pair(gap_B, row_B),
        "mismatch/log_ppl_abs_diff": mean_pair(gap_B.abs(), row_B),
        "mismatch/ppl_ratio": mean_pair(gap_B.exp(), row_B),
    }
    return metrics, {
        "mismatch/log_ppl_diff_max": largest(gap_B, row_B),
        "mismatch/log_ppl_diff_min": -largest(-gap_B, row_B),
    }


def probability_difference(
    trainer_BT: Tensor, sampler_BT: Tensor, mask_BT: Tensor
) -> tuple[Metrics, dict[str, Tensor]]:
    """Distance of the two probabilities of each sampled token, and their correlation.

    Arguments as in `mismatch`. Returns sums that `measures.finish` turns into prob_diff/mean, std and pearson, and the
    extreme prob_diff/max.

    Source: verl 0.9, rollout_correction; the correlation, Pearson 1895.
    """
    trainer_BT, sampler_BT = upcast(trainer_BT).detach(), upcast(sampler_BT).detach()
    known_BT = mask_BT & ~trainer_BT.isnan() & ~sampler_BT.isnan()
    p_BT = torch.where(known_BT, trainer_BT.double().exp(), 0.0)
    q_BT = torch.where(known_BT, sampler_BT.double().exp(), 0.0)
    gap_BT = (p_BT - q_BT).abs()
    metrics = {
        "prob_diff/mean": mean_pair(gap_BT, known_BT),
        "prob_diff/_square": mean_pair(gap_BT.square(), known_BT),
        "prob_diff/_p": mean_pair(p_BT, known_BT),
        "prob_diff/_q": mean_pair(q_BT, known_BT),
        "prob_diff/_pp": mean_pair(p_BT.square(), known_BT),
        "prob_diff/_qq": mean_pair(q_BT.square(), known_BT),
        "prob_diff/_pq": mean_pair(p_BT * q_BT, known_BT),
    }
    return metrics, {"prob_diff/max": largest(gap_BT, known_BT)}
