"""The prompts of newly admitted requests: each distinct one computed once, copied to who shares it, scored if asked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from asyncrl.inference.local_engine.forward import Forward
from asyncrl.inference.local_engine.kv_cache import KVCache
from asyncrl.inference.local_engine.prefix_cache import CachedPrompt, Key, PrefixCache
from asyncrl.inference.local_engine.request import Request
from asyncrl.inference.local_engine.sampling import token_logprobs, top_logprobs

SCORED_AT_ONCE = 256
"""Prompt positions whose logits exist at the same time when a prompt's own logprobs are asked for."""


class Prompts:
    """Prefill with sharing, over one cache, one forward and one store of recent prompts."""

    def __init__(self, forward: Forward, cache: KVCache, prefixes: PrefixCache) -> None:
        self.forward, self.cache, self.prefixes = forward, cache, prefixes

    def compute(self, batch: Sequence[Request], first_row: int) -> list[Tensor]:
        """Fills the cache for rows first_row, first_row + 1, ... of a batch, and scores the prompts that ask for it.

        Returns:
            Per request the hidden state [hidden] after its last token.
        """
        computed, copied, shared = self._plan(batch)
        last: dict[int, Tensor] = {}
        if computed:
            tokens = [batch[index].prompt + batch[index].output for index in computed]
            hidden = self.forward.prefill([first_row + index for index in computed], tokens)
            for index, ids, states in zip(computed, tokens, hidden, strict=True):
                last[index] = states[len(ids) - 1]
                request = batch[index]
                if request.logprob_start is not None and not request.output:
                    self._score(request, states, request.logprob_start)
                if _shareable(request):
                    key = PrefixCache.key(request.extra_key, request.prompt)
                    shared[key] = self._keep(key, first_row + index, last[index])
        for key, members in copied.items():
            rows = [first_row + index for index in members]
            self.cache.write(np.concatenate([self.cache.blocks_of(row) for row in rows]), shared[key].blocks)
            for index in members:
                last[index] = shared[key].last_hidden
                # One less than the prompt, as in SGLang, whose last prompt token is always computed.
                batch[index].cached_tokens = len(batch[index].prompt) - 1
        return [last[index] for index in range(len(batch))]

    def _plan(self, batch: Sequence[Request]) -> tuple[list[int], dict[Key, list[int]], dict[Key, CachedPrompt]]:
        """Who is computed, who copies which prompt, and the prompts already there."""
        computed: list[int] = []
        copied: dict[Key, list[int]] = {}
        shared: dict[Key, CachedPrompt] = {}
        coming: set[Key] = set()
        for index, request in enumerate(batch):
            if not _shareable(request):
                computed.append(index)
                continue
            key = PrefixCache.key(request.extra_key, request.prompt)
            found = self.prefixes.get(key)
            if found is not None:
                shared[key] = found
            if found is None and key not in coming:
                computed.append(index)
                coming.add(key)
            else:
                copied.setdefault(key, []).append(index)
        return computed, copied, shared

    def _keep(self, key: Key, row: int, last_hidden: Tensor) -> CachedPrompt:
        blocks = self.cache.read(self.cache.blocks_of(row), len(key[1]))
        return self.prefixes.put(key, blocks, last_hidden.clone())

    def _score(self, request: Request, states: Tensor, start: int) -> None:
        """Logprobs at T = 1 of prompt[start:], each given what precedes it; the first has none, as in SGLang."""
        tokens = request.prompt
        request.prompt_logprobs = [None]
        request.prompt_top = [None] if request.num_top else []
        for low in range(start, len(tokens) - 1, SCORED_AT_ONCE):
            high = min(low + SCORED_AT_ONCE, len(tokens) - 1)
            logits = self.forward.logits(states[low:high])
            request.prompt_logprobs += token_logprobs(logits, torch.tensor(tokens[low + 1 : high + 1])).tolist()
            if request.num_top:
                request.prompt_top += top_logprobs(logits, request.num_top)


def _shareable(request: Request) -> bool:
    # A prompt that is scored needs all its states; one that was retracted has its own output behind it.
    return request.logprob_start is None and not request.output
