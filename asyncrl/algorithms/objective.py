"""The loss of one micro-batch: correction, policy loss, KL term and entropy bonus, aggregated and summed."""

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.algorithms.aggregation import Denominators, aggregate
from asyncrl.algorithms.base import Algorithm, Correction, TokenLoss
from asyncrl.algorithms.corrections import normalized
from asyncrl.algorithms.distillation import TOPK, distillation_loss, topk_loss
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
    nonfinite_BT: Tensor
    """[B, T] bool, valid tokens that were left out because a number was NaN or infinite."""
    clipped_BT: Tensor | None
    """[B, T] bool, valid tokens that a bound of the policy loss cuts. None: it has no bounds."""


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
    lags_BT: Tensor | None = None,
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
        teacher_BT: [B, T] float, nats, NaN where no teacher scored the token: its logprobs, or with the estimator topk
            `distillation.topk_distance`, with gradient. Part of the loss if distill_coef > 0.
        selected_BT: [B, T] bool, what the algorithm's selection picked of the whole mini-batch.
        mean_weight: scalar, mean of the importance weights over the whole mini-batch, which they are divided by.
        lags_BT: [B, T] int64, versions between the one that sampled the token and the one that is trained.
    Raises:
        ValueError: a part of the algorithm is set, but not the tensor it belongs to.
    """
    _require(algorithm.kl_coef, reference_BT, "kl_coef", "reference_BT")
    _require(algorithm.entropy_coef, entropy_BT, "entropy_coef", "entropy_BT")
    _require(algorithm.distill_coef, teacher_BT, "distill_coef", "teacher_BT")
    _require(float(algorithm.selection is not None), selected_BT, "selection", "selected_BT")
    _require(float(algorithm.normalize_weights), mean_weight, "normalize_weights", "mean_weight")
    _require(float("lags_BT" in algorithm.loss_columns), lags_BT, "loss_columns", "lags_BT")
    detached_BT = logprobs_BT.detach()
    centre_BT = detached_BT if proximal_BT is None else proximal_BT
    compared_BT = detached_BT if algorithm.bypass else centre_BT
    centre_BT = sampler_BT if algorithm.bypass else centre_BT
    weighed = _weighed(algorithm, compared_BT, sampler_BT, mask_BT, selected_BT, mean_weight)
    known = {"selected_BT": selected_BT, "lags_BT": lags_BT}
    asked = {name: tensor for name in algorithm.loss_columns if (tensor := known[name]) is not None}
    policy = algorithm.loss(logprobs_BT, centre_BT, advantages_BT, mask_BT, weighed.weights_BT, **asked)
    terms = [_Term("loss/policy", 1.0, policy.loss_BT, policy.nonfinite_BT)]
    metrics = weighed.metrics | policy.metrics
    if reference_BT is not None:
        kl_BT, unknown_BT = _kl(algorithm, logprobs_BT, reference_BT, mask_BT)
        metrics["kl"] = mean_pair(kl_BT, mask_BT)
        terms.append(_Term("loss/kl", algorithm.kl_coef, kl_BT, unknown_BT))
    if entropy_BT is not None:
        finite_BT = mask_BT & entropy_BT.isfinite()
        entropy_BT = inside(entropy_BT, finite_BT)
        metrics["entropy"] = mean_pair(entropy_BT, mask_BT)
        terms.append(_Term("loss/entropy", -algorithm.entropy_coef, entropy_BT, mask_BT & ~finite_BT))
    if algorithm.distill_coef > 0 and teacher_BT is not None:
        tokens = _distillation(algorithm, logprobs_BT, teacher_BT, mask_BT)
        metrics |= tokens.metrics
        terms.append(_Term("loss/distill", algorithm.distill_coef, tokens.loss_BT, tokens.nonfinite_BT))

    nonfinite_BT, loss = weighed.nonfinite_BT, None
    for term in terms:
        if term.coef == 0:
            continue
        value = _aggregated(algorithm, term.values_BT, mask_BT, denominators)
        metrics[term.name] = _share(value, mask_BT, denominators)
        loss = term.coef * value if loss is None else loss + term.coef * value
        nonfinite_BT = nonfinite_BT | term.nonfinite_BT
    assert loss is not None  # the policy's term has coefficient 1
    metrics["loss/total"] = _share(loss, mask_BT, denominators)
    metrics["nonfinite_tokens"] = mean_pair(nonfinite_BT, mask_BT)
    return Objective(
        loss,
        metrics,
        weighed.extremes,
        weighed.correction,
        rejected_BT=None if weighed.weights_BT is None else mask_BT & (weighed.weights_BT == 0),
        nonfinite_BT=nonfinite_BT,
        clipped_BT=policy.clipped_BT,
    )


@dataclass(frozen=True)
class _Term:
    """A part of the loss: its metric, its coefficient, a value a token, and the valid tokens that were left out."""

    name: str
    coef: float
    values_BT: Tensor
    nonfinite_BT: Tensor


@dataclass(frozen=True)
class _Weighed:
    """What tokens count for; see `Objective` for the rest."""

    correction: Correction | None
    weights_BT: Tensor | None
    nonfinite_BT: Tensor
    metrics: Metrics
    extremes: dict[str, Tensor]


def _weighed(
    algorithm: Algorithm,
    compared_BT: Tensor,
    sampler_BT: Tensor,
    mask_BT: Tensor,
    selected_BT: Tensor | None,
    mean_weight: Tensor | None,
) -> _Weighed:
    """Importance weights with what correction and selection reject."""
    correction, weights_BT, metrics, extremes = None, None, Metrics(), {}
    nonfinite_BT = torch.zeros_like(mask_BT)
    if algorithm.correction is not None:
        correction = algorithm.correction(compared_BT, sampler_BT, mask_BT)
        weights_BT = inside(correction.weights_BT, correction.keep_BT)
        if mean_weight is not None:
            weights_BT = normalized(weights_BT, mean_weight)
        metrics, extremes, nonfinite_BT = dict(correction.metrics), dict(correction.extremes), correction.nonfinite_BT
    if algorithm.selection is not None and selected_BT is not None:
        metrics["selected_frac"] = mean_pair(selected_BT & mask_BT, mask_BT)
        if algorithm.selection.rejects:
            weights_BT = inside(mask_BT.float() if weights_BT is None else weights_BT, ~selected_BT)
    return _Weighed(correction, weights_BT, nonfinite_BT, metrics, extremes)


def _distillation(algorithm: Algorithm, logprobs_BT: Tensor, teacher_BT: Tensor, mask_BT: Tensor) -> TokenLoss:
    if algorithm.distill_estimator == TOPK:
        return topk_loss(teacher_BT, mask_BT)
    return distillation_loss(logprobs_BT, teacher_BT, mask_BT, kind=algorithm.distill_estimator)


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
