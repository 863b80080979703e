"""What changed in a model's plain weights since its copies were made: whole tensors, or words of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from torch import Tensor

from asyncrl.inference.local_engine.copies import Where

FEW = 8
"""Up to one word in so many is written by itself. When more changed a copy is made again, in an eighth of the time per
word."""


class Changes:
    """Of one `Weights`, by fused name.

    Attributes:
        whole: tensors of which everything may have changed.
        words: pieces of places, by tensor that is not in `whole`.
    """

    def __init__(self, fused: Mapping[str, Tensor]) -> None:
        self._fused = fused
        self.whole: set[str] = set()
        self.words: dict[str, list[Where]] = {}

    def __bool__(self) -> bool:
        return bool(self.whole or self.words)

    def add(self, names: Iterable[str]) -> None:
        """Everything in these tensors."""
        for name in names:
            self.whole.add(name)
            self.words.pop(name, None)

    def add_words(self, name: str, where: Where) -> None:
        """Some words of a tensor; `where` is copied."""
        if name in self.whole or not where.size:
            return
        pieces = self.words.setdefault(name, [])
        most = self._fused[name].numel() // FEW
        if self._fused[name].dim() != 2 or sum(map(len, pieces)) + where.size > most:
            self.add([name])
            return
        # Half of the memory, and the type that `copies` compiles for; a matrix beyond that goes the slower way.
        pieces.append(where.astype(np.int32) if self._fused[name].numel() < 1 << 31 else where.astype(np.int64))

    def clear(self) -> None:
        """Nothing has changed any more."""
        self.whole.clear()
        self.words.clear()
