"""Logits to logprobs of the sampled tokens and entropies, without a second copy of the logits in float32."""

from collections.abc import Callable, Iterator
from typing import Any  # autograd's ctx: torch documents that attributes are set on it, and types none of them

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_CHUNK_ELEMENTS = 1 << 24
"""Logits that are in float32 at once (64 MiB): a vocabulary of 150,000 would else need 600 KB a token three times."""


def token_logprobs(logits_BTV: Tensor, labels_BT: Tensor, *, temperature: float) -> Tensor:
    """Log-softmax of logits / temperature at the labels.

    The temperature must be the one the tokens were sampled at: at another one, the ratio to the sampler's logprobs
    differs from 1 with equal weights.

    Args:
        logits_BTV: [..., V] any float type; upcast to float32 piece by piece, also in the backward pass.
        labels_BT: [...] int64 in [0, V), also at positions that are masked later.
        temperature: > 0.
    Returns:
        [...] float32, nats. A position whose incoming gradient is 0 gives its logits gradient 0, even if they are NaN.
    Raises:
        ValueError: temperature not above 0, or shapes that do not belong together.
    """
    if logits_BTV.shape[:-1] != labels_BT.shape:
        raise ValueError(
            f"logits of shape {tuple(logits_BTV.shape)} need labels of shape {tuple(logits_BTV.shape[:-1])}, got "
            f"{tuple(labels_BT.shape)}: one token would get the logprob of another."
        )
    flat = logits_BTV.reshape(-1, logits_BTV.shape[-1])
    apply: Callable[..., Tensor] = _TokenLogprobs.apply  # typed here: torch leaves it without types
    return apply(flat, labels_BT.reshape(-1), _checked(temperature)).reshape(labels_BT.shape)


def entropy(logits_BTV: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Entropy of softmax(logits / temperature), differentiable.

    Args:
        logits_BTV: [..., V] any float type; -inf for a token that cannot be drawn.
        temperature: > 0.
    Returns:
        [...] float32, nats.
    Raises:
        ValueError: temperature not above 0.
    Source: Shannon 1948; as a bonus of policy gradients, arXiv:1602.01783, section 4.
    """
    flat = logits_BTV.reshape(-1, logits_BTV.shape[-1])
    apply: Callable[..., Tensor] = _Entropy.apply
    return apply(flat, _checked(temperature)).reshape(logits_BTV.shape[:-1])


def sum_pi_squared(logits_BTV: Tensor) -> Tensor:
    """[...] sum over the vocabulary of the squared probabilities, without gradient.

    Source: verl 0.9, optimal_token_baseline.
    """
    logits_BTV = logits_BTV.detach().float()
    return ((2 * logits_BTV).logsumexp(dim=-1) - 2 * logits_BTV.logsumexp(dim=-1)).exp()


def _checked(temperature: float) -> float:
    if not temperature > 0:
        raise ValueError(
            f"temperature = {temperature} must be above 0: logprobs of greedy decoding carry no signal to train on. "
            "Set rollout.temperature."
        )
    return temperature


def _chunks(logits_NV: Tensor) -> Iterator[slice]:
    num_rows, size = logits_NV.shape
    step = max(_CHUNK_ELEMENTS // max(size, 1), 1)
    return (slice(i, i + step) for i in range(0, num_rows, step))


class _TokenLogprobs(torch.autograd.Function):
    """Keeps the logits as they came and one normaliser a row; the softmax is made again, in pieces, going back."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, labels_N: Tensor, temperature: float) -> Tensor:
        normalisers_N = logits_NV.new_empty(len(logits_NV), dtype=torch.float32)
        logprobs_N = torch.empty_like(normalisers_N)
        for rows in _chunks(logits_NV):
            scaled = logits_NV[rows].float() / temperature
            normalisers_N[rows] = scaled.logsumexp(dim=-1)
            logprobs_N[rows] = scaled.gather(-1, labels_N[rows, None]).squeeze(-1) - normalisers_N[rows]
        ctx.save_for_backward(logits_NV, labels_N, normalisers_N)
        ctx.temperature = temperature
        return logprobs_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor, None, None]:
        logits_NV, labels_N, normalisers_N = ctx.saved_tensors
        grad_logits_NV = torch.empty_like(logits_NV)
        for rows in _chunks(logits_NV):
            grad = grad_N[rows, None] / ctx.temperature
            softmax = (logits_NV[rows].float() / ctx.temperature - normalisers_N[rows, None]).exp_()
            piece = softmax.mul_(-grad).scatter_add_(-1, labels_N[rows, None], grad)
            grad_logits_NV[rows] = torch.where(grad == 0, 0.0, piece).to(grad_logits_NV.dtype)
        return grad_logits_NV, None, None


class _Entropy(torch.autograd.Function):
    """H = lse(z) - sum softmax(z) z; its gradient is -softmax(z) (log softmax(z) + H), made again in pieces."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, temperature: float) -> Tensor:
        normalisers_N = logits_NV.new_empty(len(logits_NV), dtype=torch.float32)
        entropies_N = torch.empty_like(normalisers_N)
        for rows in _chunks(logits_NV):
            scaled = logits_NV[rows].float() / temperature
            normalisers_N[rows] = scaled.logsumexp(dim=-1)
            log_softmax = scaled - normalisers_N[rows, None]
            entropies_N[rows] = -_times_log(log_softmax.exp(), log_softmax).sum(dim=-1)
        ctx.save_for_backward(logits_NV, normalisers_N, entropies_N)
        ctx.temperature = temperature
        return entropies_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor, None]:
        logits_NV, normalisers_N, entropies_N = ctx.saved_tensors
        grad_logits_NV = torch.empty_like(logits_NV)
        for rows in _chunks(logits_NV):
            grad = grad_N[rows, None] / ctx.temperature
            log_softmax = logits_NV[rows].float() / ctx.temperature - normalisers_N[rows, None]
            piece = -grad * _times_log(log_softmax.exp(), log_softmax + entropies_N[rows, None])
            grad_logits_NV[rows] = torch.where(grad == 0, 0.0, piece).to(grad_logits_NV.dtype)
        return grad_logits_NV, None


def _times_log(probabilities: Tensor, logs: Tensor) -> Tensor:
    """p x log, 0 where p is 0 (there the logarithm is -inf)."""
    return torch.where(probabilities > 0, probabilities * logs, 0.0)
