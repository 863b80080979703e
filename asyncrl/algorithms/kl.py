"""Estimators of the KL divergence to a reference, per token, and the controllers of its coefficient."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from asyncrl.algorithms.masking import clamped, upcast

_ALIASES = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
_K3_LIMIT = 10.0

KL_ESTIMATORS = tuple(
    kind + plus for plus in ("", "+") for kind in ("k1", "kl", "abs", "k2", "mse", "k3", "low_var_kl")
)
"""Names of `kl_estimate`. With `+`: the value of the estimator with the gradient of k2."""

UNBIASED_IN_A_LOSS = tuple(kind for kind in KL_ESTIMATORS if kind not in ("k1", "kl"))
"""Those that may be a loss term: the gradient of k1 has mean 0 on-policy, so it regularises nothing."""


def kl_estimate(logprobs: Tensor, reference: Tensor, kind: str) -> Tensor:
    """KL(policy || reference) at the sampled tokens, estimated from their logprobs alone.

    Args:
        logprobs: any shape, float, nats, under the policy; the gradient flows through it.
        reference: same shape, under the reference; no gradient.
        kind: one of KL_ESTIMATORS. As a loss, k2 and every `+` kind have the gradient of the reverse KL; k3 has that of
            the forward direction.
    Returns:
        Same shape, float32. k3 is cut at +-10, with gradient 0 there.
    Raises:
        ValueError: unknown kind.
    Source: J. Schulman, "Approximating KL Divergence" (2020); straight-through: arXiv:2506.09477.
    """
    log_ratio = upcast(logprobs) - upcast(reference).detach()
    straight_through = kind.endswith("+")
    base = kind.removesuffix("+")
    base = _ALIASES.get(base, base)
    if base == "k1":
        value = log_ratio
    elif base == "abs":
        value = log_ratio.abs()
    elif base == "k2":
        value = log_ratio.square() / 2
    elif base == "k3":
        inverse = clamped(-log_ratio)
        value = (inverse.exp() - inverse - 1).clamp(-_K3_LIMIT, _K3_LIMIT)
    else:
        raise ValueError(f"Unknown KL estimator {kind!r}; known are {', '.join(KL_ESTIMATORS)}.")
    if not straight_through:
        return value
    k2 = log_ratio.square() / 2
    return value.detach() + (k2 - k2.detach())


def kl_full(logits: Tensor, reference_logits: Tensor) -> Tensor:
    """KL(policy || reference) summed over the whole vocabulary.

    Args:
        logits: [..., V] of the policy, already divided by the temperature; with gradient.
        reference_logits: [..., V], no gradient.
    Returns:
        [...] float32.
    Source: Kullback and Leibler 1951.
    """
    log_policy = upcast(logits).log_softmax(dim=-1)
    log_reference = upcast(reference_logits).detach().log_softmax(dim=-1)
    policy = log_policy.exp()
    # A token of probability 0 (logit -inf) adds 0, not 0 x inf, in either direction.
    gap = torch.where(policy > 0, log_policy - log_reference, 0.0)
    return (policy * gap).sum(dim=-1)


@dataclass(frozen=True)
class KLController:
    """Coefficient of a KL penalty in the reward; part of the checkpoint.

    Source: adaptive form, arXiv:1909.08593, section 2.2.
    """

    coef: float
    target: float | None = None
    """None: the coefficient stays as it is."""
    horizon: float = 10_000.0
    """Rows after which an error of 20 % or more has changed the coefficient by 20 %."""

    def updated(self, kl: float, num_rows: int) -> Self:
        """The controller after a batch.

        Args:
            kl: mean over rows of each row's mean over tokens, measured with this coefficient.
            num_rows: rows that had tokens.
        """
        if self.target is None:
            return self
        error = min(max(kl / self.target - 1.0, -0.2), 0.2)
        return replace(self, coef=self.coef * (1.0 + error * num_rows / self.horizon))
