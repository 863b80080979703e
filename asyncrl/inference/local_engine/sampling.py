"""Draws one token per row from logits, and its logprob under the distribution that SGLang reports.

Logprobs are log_softmax(logits / T) of the drawn token, not renormalised for top-k, top-p or min-p; a greedy row's are
at T = 1. One uniform per token and an inverse distribution function: a row's draw depends on nothing but its own
logits and its own uniform.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

UNIFORM_MAX = 1.0 - 2.0**-23
"""Largest uniform. u * Z then rounds below Z, so that a token of weight 0 at the vocabulary's end is never drawn."""

BLOCKS_FROM = 4096
"""From this vocabulary on the sum is made in two levels: a float32 running sum over 50 k entries loses the tail."""


@dataclass(frozen=True)
class Filters:
    """What narrows some rows' distributions. All [N]; rows that ask for nothing hold k = vocab, p = 1, min_p = 0."""

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor


def uniforms(seed: int | tuple[int, int], count: int, first: int = 0) -> NDArray[np.float32]:
    """The uniforms of one request, by position in its sequence, as SGLang's deterministic mode draws.

    So an answer that was cut and is continued under the same seed draws what it would have drawn uncut.

    Args:
        seed: the request's `sampling_seed`, or (server seed, number of the request) when it has none.
        count: how many.
        first: the position of the first.
    Returns:
        [count] float32 in [0, UNIFORM_MAX], entries [first, first + count) of the one stream of the seed.
    """
    words = (seed & (2**64 - 1), 0) if isinstance(seed, int) else (seed[0] & (2**64 - 1), seed[1] + 1)
    generator = np.random.Generator(np.random.Philox(key=np.array(words, dtype=np.uint64)))
    return np.minimum(generator.random(first + count, dtype=np.float32)[first:], np.float32(UNIFORM_MAX))


def sample(
    logits: Tensor,
    inverse_temperature: Tensor | None,
    uniform: Tensor,
    *,
    greedy: Tensor | None,
    filters: Filters | None,
) -> tuple[Tensor, Tensor]:
    """Draws a token per row.

    Args:
        logits: [N, vocab] float32; overwritten.
        inverse_temperature: [N] float32, 1 / T, 1 for greedy rows; None when all are 1.
        uniform: [N] float32 in [0, UNIFORM_MAX].
        greedy: [N] bool, rows that take the largest logit; None when there is none.
        filters: None when no row asks for any.
    Returns:
        tokens [N] int64 and logprobs [N] float32 (nats).
    """
    if inverse_temperature is not None:
        logits.mul_(inverse_temperature.unsqueeze(1))
    if greedy is None:
        top, best = logits.amax(-1, keepdim=True), None
    else:
        top, best = logits.max(-1, keepdim=True)
    weights = logits.sub_(top).exp_()
    uniform = uniform.unsqueeze(1)
    if filters is None:
        tokens, total = _inverse_cdf(weights, uniform)
    else:
        total = _inverse_cdf(weights, uniform)[1]
        tokens = _inverse_cdf(_filtered(weights, total, filters), uniform)[0]
    if greedy is not None and best is not None:
        tokens = torch.where(greedy.unsqueeze(1), best, tokens)
    logprobs = weights.gather(1, tokens).div_(total).log_()
    return tokens.squeeze(1), logprobs.squeeze(1)


def token_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """[N] logprobs at T = 1 of given tokens [N] under logits [N, vocab]: what a prompt's own tokens get."""
    return torch.log_softmax(logits, -1).gather(1, tokens.unsqueeze(1)).squeeze(1)


def top_logprobs(logits: Tensor, count: int) -> list[list[tuple[float, int]]]:
    """The `count` likeliest tokens under each of logits [N, vocab], likeliest first, with logprobs at T = 1."""
    values, tokens = torch.log_softmax(logits, -1).topk(count, dim=-1)
    return [list(zip(*row, strict=True)) for row in zip(values.tolist(), tokens.tolist(), strict=True)]


def _inverse_cdf(weights: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens [N, 1] and sums [N, 1] of weights [N, vocab]; the first token whose running sum passes uniform * sum.

    The clamps matter for rows of NaN only: these get some token and a NaN logprob, which the engine sees.
    """
    vocab = weights.shape[1]
    block = gcd(vocab, 256)
    if vocab < BLOCKS_FROM or block < 32:
        running = weights.cumsum(-1, dtype=torch.float64 if vocab >= BLOCKS_FROM else None)
        total = running[:, -1:]
        tokens = torch.searchsorted(running, (uniform * total).to(running.dtype), right=True)
        return tokens.clamp_(max=vocab - 1), total.float()
    blocks = weights.view(-1, vocab // block, block)
    running = blocks.sum(-1).cumsum(-1)
    total = running[:, -1:]
    target = uniform * total
    index = torch.searchsorted(running, target, right=True).clamp_(max=vocab // block - 1)
    before = torch.where(index > 0, running.gather(1, (index - 1).clamp_(min=0)), 0.0)
    inner = blocks.gather(1, index.unsqueeze(-1).expand(-1, 1, block)).squeeze(1).cumsum(-1)
    # The block's own running sum may end a rounding below what the blocks' sums promised: stay inside it.
    rest = torch.minimum(target - before, inner[:, -1:] * UNIFORM_MAX)
    return index * block + torch.searchsorted(inner, rest, right=True).clamp_(max=block - 1), total


def _filtered(weights: Tensor, total: Tensor, filters: Filters) -> Tensor:
    """Weights with what top-k, top-p and min-p exclude set to 0, as SGLang's torch sampler excludes it."""
    sorted_weights, order = weights.sort(dim=-1, descending=True, stable=True)
    before = sorted_weights.cumsum(-1).sub_(sorted_weights)
    rank = torch.arange(weights.shape[1]).unsqueeze(0)
    drop = rank >= filters.top_k.unsqueeze(1)
    drop |= before > filters.top_p.unsqueeze(1) * total
    drop |= sorted_weights < filters.min_p.unsqueeze(1) * sorted_weights[:, :1]
    return weights.masked_fill(torch.zeros_like(drop).scatter_(1, order, drop), 0.0)
