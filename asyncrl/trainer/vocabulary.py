"""What logits say of the sampled tokens: of whole ones, or where every rank has those of a part of the vocabulary.

Where ranks share the head, the whole of the logits is on no rank. A few numbers a token are put together, its
normaliser first; the softmax of a rank's own part follows from that, forward and back. On the way back nothing is
sent: all ranks compute the same loss of the same logprobs, so that each has the whole gradient of its own logits.

Source: the vocabulary parallel cross entropy of arXiv:1909.08053, section 3.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from asyncrl.algorithms import logprobs
from asyncrl.trainer.sliced_layers import gathered

_CHUNK_ELEMENTS = 1 << 24
"""Logits that are in float32 at once, as in algorithms.logprobs."""


class Vocabulary(Protocol):
    """What a model's logits are turned into. WholeVocabulary, SharedVocabulary."""

    def logprobs(self, logits_MV: Tensor, labels_M: Tensor, *, temperature: float) -> Tensor:
        """[M] float32, nats; see algorithms.logprobs.token_logprobs."""
        ...

    def entropies(self, logits_MV: Tensor, *, temperature: float) -> Tensor:
        """[M] float32, nats; see algorithms.logprobs.entropy."""
        ...

    def whole(self, logits_MV: Tensor) -> Tensor:
        """[M, V] of all tokens, for what cannot be told from parts; the gradient flows through."""
        ...


class WholeVocabulary:
    """Logits of all tokens."""

    def logprobs(self, logits_MV: Tensor, labels_M: Tensor, *, temperature: float) -> Tensor:
        """See Vocabulary."""
        return logprobs.token_logprobs(logits_MV, labels_M, temperature=temperature)

    def entropies(self, logits_MV: Tensor, *, temperature: float) -> Tensor:
        """See Vocabulary."""
        return logprobs.entropy(logits_MV, temperature=temperature)

    def whole(self, logits_MV: Tensor) -> Tensor:
        """See Vocabulary."""
        return logits_MV


class SharedVocabulary:
    """Logits of which each rank of a group has as many consecutive tokens, in the order of ranks. Every method is
    collective."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def logprobs(self, logits_MV: Tensor, labels_M: Tensor, *, temperature: float) -> Tensor:
        """See Vocabulary."""
        found: Tensor = _Logprobs.apply(logits_MV, labels_M, temperature, self._group)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return found

    def entropies(self, logits_MV: Tensor, *, temperature: float) -> Tensor:
        """See Vocabulary."""
        found: Tensor = _Entropies.apply(logits_MV, temperature, self._group)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return found

    def whole(self, logits_MV: Tensor) -> Tensor:
        """See Vocabulary."""
        return gathered(logits_MV, self._group)


def _chunks(logits_MV: Tensor) -> Iterator[slice]:
    num_rows, size = logits_MV.shape
    step = max(_CHUNK_ELEMENTS // max(size, 1), 1)
    return (slice(i, i + step) for i in range(0, num_rows, step))


def _normalisers(logits_MV: Tensor, temperature: float, group: dist.ProcessGroup) -> Tensor:
    """[M] float32, the logarithm of the sum over the whole vocabulary."""
    own_M = logits_MV.new_empty(len(logits_MV), dtype=torch.float32)
    for rows in _chunks(logits_MV):
        own_M[rows] = (logits_MV[rows].float() / temperature).logsumexp(dim=-1)
    parts = [torch.empty_like(own_M) for _ in range(group.size())]
    dist.all_gather(parts, own_M, group=group)
    return torch.stack(parts).logsumexp(dim=0)


# Any: torch leaves untyped what autograd hands to these functions.


class _Logprobs(torch.autograd.Function):
    """Keeps the logits as they came and one normaliser a row; the softmax is made again, in pieces, going back."""

    @staticmethod
    def forward(ctx: Any, logits_MV: Tensor, labels_M: Tensor, temperature: float, group: dist.ProcessGroup) -> Tensor:
        own_M = labels_M - group.rank() * logits_MV.shape[-1]
        is_other_M = (own_M < 0) | (own_M >= logits_MV.shape[-1])
        own_M = own_M.masked_fill(is_other_M, 0)
        chosen_M = logits_MV.gather(-1, own_M[:, None]).squeeze(-1).float() / temperature
        chosen_M = chosen_M.masked_fill(is_other_M, 0.0)
        dist.all_reduce(chosen_M, group=group)
        normalisers_M = _normalisers(logits_MV, temperature, group)
        ctx.save_for_backward(logits_MV, own_M, is_other_M, normalisers_M)
        ctx.temperature = temperature
        return chosen_M - normalisers_M

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_M: Tensor) -> tuple[Tensor, None, None, None]:
        logits_MV, own_M, is_other_M, normalisers_M = ctx.saved_tensors
        grad_logits_MV = torch.empty_like(logits_MV)
        of_chosen_M = grad_M.masked_fill(is_other_M, 0.0) / ctx.temperature
        for rows in _chunks(logits_MV):
            grad = grad_M[rows, None] / ctx.temperature
            softmax = (logits_MV[rows].float() / ctx.temperature - normalisers_M[rows, None]).exp_()
            piece = softmax.mul_(-grad).scatter_add_(-1, own_M[rows, None], of_chosen_M[rows, None])
            # A position that counts for nothing has no gradient, even if its logits are NaN.
            grad_logits_MV[rows] = torch.where(grad == 0, 0.0, piece).to(grad_logits_MV.dtype)
        return grad_logits_MV, None, None, None


class _Entropies(torch.autograd.Function):
    """H = -sum p log p; its gradient is -p (log p + H), made again in pieces. Where p is 0 both are 0."""

    @staticmethod
    def forward(ctx: Any, logits_MV: Tensor, temperature: float, group: dist.ProcessGroup) -> Tensor:
        normalisers_M = _normalisers(logits_MV, temperature, group)
        entropies_M = torch.empty_like(normalisers_M)
        for rows in _chunks(logits_MV):
            log_softmax = logits_MV[rows].float() / temperature - normalisers_M[rows, None]
            entropies_M[rows] = -_times_log(log_softmax.exp(), log_softmax).sum(dim=-1)
        dist.all_reduce(entropies_M, group=group)
        ctx.save_for_backward(logits_MV, normalisers_M, entropies_M)
        ctx.temperature = temperature
        return entropies_M

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_M: Tensor) -> tuple[Tensor, None, None]:
        logits_MV, normalisers_M, entropies_M = ctx.saved_tensors
        grad_logits_MV = torch.empty_like(logits_MV)
        for rows in _chunks(logits_MV):
            grad = grad_M[rows, None] / ctx.temperature
            log_softmax = logits_MV[rows].float() / ctx.temperature - normalisers_M[rows, None]
            piece = -grad * _times_log(log_softmax.exp(), log_softmax + entropies_M[rows, None])
            grad_logits_MV[rows] = torch.where(grad == 0, 0.0, piece).to(grad_logits_MV.dtype)
        return grad_logits_MV, None, None


def _times_log(probabilities: Tensor, logs: Tensor) -> Tensor:
    """p x log, 0 where p is 0 (there the logarithm is -inf)."""
    return torch.where(probabilities > 0, probabilities * logs, 0.0)
