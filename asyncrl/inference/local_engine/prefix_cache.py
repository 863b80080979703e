"""Keys and values of recent prompts, so that a group's identical prompts are computed once.

Only whole prompts are shared: the copy then equals a fresh prefill bit for bit, whoever computed it. Like SGLang's
radix cache it is keyed by tokens and `extra_key` and NOT by weight version: after an update that did not flush, a
prompt without an `extra_key` per version reuses keys and values of the old weights.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

Key = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class CachedPrompt:
    """`blocks` as `KVCache.read` gives them; `last_hidden` is [hidden], the state after the prompt's last token."""

    blocks: tuple[Tensor, Tensor]
    last_hidden: Tensor
    num_bytes: int


class PrefixCache:
    """Recently used prompts up to a budget of bytes; the longest unused leaves first."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._entries: OrderedDict[Key, CachedPrompt] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @staticmethod
    def key(extra_key: str, prompt: Sequence[int]) -> Key:
        return extra_key, tuple(prompt)

    def get(self, key: Key) -> CachedPrompt | None:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: Key, blocks: tuple[Tensor, Tensor], last_hidden: Tensor) -> CachedPrompt:
        """Keeps a prompt that is not there yet, unless it is larger than the whole budget, and returns it."""
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in (last_hidden, *blocks))
        entry = CachedPrompt(blocks, last_hidden, num_bytes)
        if num_bytes <= self.max_bytes:
            self._entries[key] = entry
            self.num_bytes += num_bytes
        while self.num_bytes > self.max_bytes:
            _, dropped = self._entries.popitem(last=False)
            self.num_bytes -= dropped.num_bytes
        return entry

    def clear(self) -> None:
        self._entries.clear()
        self.num_bytes = 0
