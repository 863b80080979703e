"""The loss of one micro-batch: correction, policy loss, KL term and entropy bonus, aggregated and summed."""

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.algorithms.aggregation import Denominators, aggregate
from asyncrl.algorithms.base import Algorithm, Correction
from asyncrl.algorithms.corrections import normalized
from asyncrl.algorithms.distillation import distillation_loss
from asyncrl.algorithms.kl import kl_estimate
from asyncrl.algorithms.masking import Metrics, inside, mean_pair, upcast


@dataclass(frozen=True)
class Objective:
    """What a micro-batch adds to the step."""

    loss: Tensor
    """Scalar to call backward on: policy_loss - entropy_coef x entropy + kl_coef x kl + distill_coef x distillation."""
    metrics: Metrics
    """Pairs; those under loss/ are exact for the mini-batch once the pairs of all its micro-batches are summed."""
    extremes: dict[str, Tensor]
    correction: Correction | None
    rejected_BT: Tensor | None
    """[B, T] bool, valid tokens that count for nothing in the policy loss: their weight is 0. None: there are none."""


def policy_objective(
    algorithm: Algorithm,
    logprobs_BT: Tensor,
    sampler_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    denominators: Denominators,
    *,
    proximal_BT: Tensor | None = None,
    reference_BT: Tensor | None = None,
    entropy_BT: Tensor | None = None,
    teacher_BT: Tensor | None = None,
    selected_BT: Tensor | None = None,
    mean_weight: Tensor | None = None,
) -> Objective:
    """Everything between logprobs and `backward`, the same for any split of a mini-batch into micro-batches by rows.

    Args:
        algorithm: a row of ALGORITHMS, or what `resolve` made of it.
        logprobs_BT: [B, T] float, nats, at the sampling temperature, with gradient.
        sampler_BT: [B, T] float, nats, recorded by the server.
        advantages_BT: [B, T] float.
        mask_BT: [B, T] bool, policy tokens.
        denominators: counts over the whole mini-batch.
        proximal_BT: [B, T] float, nats, of the weights at the start of the step. None: the current ones, right when a
            batch gets one optimizer step.
        reference_BT: [B, T] float, nats. The KL is measured if it is given, and part of the loss if kl_coef > 0.
        entropy_BT: [B, T] float, measured if given, and part of the loss if entropy_coef is not 0.
        teacher_BT: [B, T] float, nats, NaN where no teacher scored the token. Part of the loss if distill_coef > 0.
        selected_BT: [B, T] bool, what the algorithm's selection picked of the whole mini-batch.
        mean_weight: scalar, mean of the importance weights over the whole mini-batch, which they are divided by.
    Raises:
        ValueError: a coefficient, a selection or a normalisation is set, but not the tensor it belongs to.
    """
    _require(algorithm.kl_coef, reference_BT, "kl_coef", "reference_BT")
    _require(algorithm.entropy_coef, entropy_BT, "entropy_coef", "entropy_BT")
    _require(algorithm.distill_coef, teacher_BT, "distill_coef", "teacher_BT")
    _require(float(algorithm.selection is not None), selected_BT, "selection", "selected_BT")
    _require(float(algorithm.normalize_weights), mean_weight, "normalize_weights", "mean_weight")
    detached_BT = logprobs_BT.detach()
    centre_BT = detached_BT if proximal_BT is None else proximal_BT
    compared_BT = centre_BT
    if algorithm.bypass:
        centre_BT, compared_BT = sampler_BT, detached_BT
    correction, weights_BT, metrics, extremes = None, None, Metrics(), {}
    if algorithm.correction is not None:
        correction = algorithm.correction(compared_BT, sampler_BT, mask_BT)
        weights_BT = inside(correction.weights_BT, correction.keep_BT)
        if mean_weight is not None:
            weights_BT = normalized(weights_BT, mean_weight)
        metrics, extremes = dict(correction.metrics), dict(correction.extremes)
    selected: dict[str, Tensor] = {}
    if algorithm.selection is not None and selected_BT is not None:
        metrics["selected_frac"] = mean_pair(selected_BT & mask_BT, mask_BT)
        if algorithm.selection.rejects:
            weights_BT = inside(torch.ones_like(advantages_BT) if weights_BT is None else weights_BT, ~selected_BT)
        else:
            selected["selected_BT"] = selected_BT
    policy = algorithm.loss(logprobs_BT, centre_BT, advantages_BT, mask_BT, weights_BT, **selected)
    metrics |= policy.metrics
    nonfinite_BT = policy.nonfinite_BT if correction is None else policy.nonfinite_BT | correction.nonfinite_BT

    loss = _aggregated(algorithm, policy.loss_BT, mask_BT, denominators)
    metrics["loss/policy"] = _share(loss, mask_BT, denominators)
    if reference_BT is not None:
        kl_BT, unknown_BT = _kl(algorithm, logprobs_BT, reference_BT, mask_BT)
        metrics["kl"] = mean_pair(kl_BT, mask_BT)
        if algorithm.kl_coef > 0:
            nonfinite_BT = nonfinite_BT | unknown_BT
            kl = _aggregated(algorithm, kl_BT, mask_BT, denominators)
            metrics["loss/kl"] = _share(kl, mask_BT, denominators)
            loss = loss + algorithm.kl_coef * kl
    if entropy_BT is not None:
        finite_BT = mask_BT & entropy_BT.isfinite()
        entropy_BT = inside(entropy_BT, finite_BT)
        metrics["entropy"] = mean_pair(entropy_BT, mask_BT)
        if algorithm.entropy_coef != 0:
            nonfinite_BT = nonfinite_BT | (mask_BT & ~finite_BT)
            bonus = _aggregated(algorithm, entropy_BT, mask_BT, denominators)
            metrics["loss/entropy"] = _share(bonus, mask_BT, denominators)
            loss = loss - algorithm.entropy_coef * bonus
    if algorithm.distill_coef > 0 and teacher_BT is not None:
        tokens = distillation_loss(logprobs_BT, teacher_BT, mask_BT, kind=algorithm.distill_estimator)
        metrics |= tokens.metrics
        nonfinite_BT = nonfinite_BT | tokens.nonfinite_BT
        distillation = _aggregated(algorithm, tokens.loss_BT, mask_BT, denominators)
        metrics["loss/distill"] = _share(distillation, mask_BT, denominators)
        loss = loss + algorithm.distill_coef * distillation
    metrics["loss/total"] = _share(loss, mask_BT, denominators)
    metrics["nonfinite_tokens"] = mean_pair(nonfinite_BT, mask_BT)
    rejected_BT = None if weights_BT is None else mask_BT & (weights_BT == 0)
    return Objective(loss, metrics, extremes, correction, rejected_BT)


def _require(coef: float, tensor: Tensor | None, coef_name: str, tensor_name: str) -> None:
    if coef != 0 and tensor is None:
        raise ValueError(
            f"algorithm.{coef_name} = {coef}, but {tensor_name} was not given: the term would be left out of the loss."
        )


def _aggregated(algorithm: Algorithm, values_BT: Tensor, mask_BT: Tensor, denominators: Denominators) -> Tensor:
    return aggregate(
        values_BT,
        mask_BT,
        algorithm.aggregation,
        global_tokens=denominators.tokens,
        global_seqs=denominators.sequences,
        norm_length=algorithm.norm_length,
        dp_size=denominators.dp_size,
    )


def _share(value: Tensor, mask_BT: Tensor, denominators: Denominators) -> tuple[Tensor, Tensor]:
    """A loss as a pair: the counts are shares of the mini-batch's tokens, so that over all of it they sum to 1."""
    numerator = value.detach().double() / denominators.dp_size
    return numerator, mask_BT.sum().double() / max(denominators.tokens, 1)


def _kl(algorithm: Algorithm, logprobs_BT: Tensor, reference_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """KL a token, and the valid tokens whose log ratio to the reference is not finite (their KL is 0)."""
    logprobs_BT, reference_BT = upcast(logprobs_BT), upcast(reference_BT)
    finite_BT = mask_BT & (logprobs_BT.detach() - reference_BT).isfinite()
    kl_BT = kl_estimate(inside(logprobs_BT, finite_BT), inside(reference_BT, finite_BT), algorithm.kl_estimator)
    return torch.where(finite_BT, kl_BT, 0.0), mask_BT & ~finite_BT
