"""A copy of a weight for computing, and how the words that an update changed are written into it.

An update of reinforcement learning changes a few words in a hundred, in every tensor: to make all copies again would
take many times as long as the update.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.inference.local_engine.places import WORDS, Places, memory_of
from weightsync.vector import HAVE_NUMBA, jit, prefetch

Where = NDArray[np.int32] | NDArray[np.int64]
"""[n] places of a weight's words, as they lie in its plain storage, row by row."""

NUM_TRIED = 16
"""Rows of a new copy that are read where `Places` says, before anything is written there."""

_AHEAD = 24
"""Words by which the next reads are asked for: each is in a cache line of its own."""

_SHIFTS = {(torch.bfloat16, torch.float32): 16, (torch.bfloat16, torch.bfloat16): 0, (torch.float32, torch.float32): 0}
"""Bits by which a word of the storage is shifted to be one of the copy. Other pairs round, which torch does."""

_UNSIGNED = {torch.bfloat16: np.uint16, torch.float32: np.uint32}


class Copy(NamedTuple):
    """A copy, its memory, and where the numbers of the plain matrix lie in it.

    Without the copy itself, the memory of a packed one would not be kept.
    """

    tensor: Tensor
    memory: Tensor
    places: Places

    @classmethod
    def of(cls, copy: Tensor, places: Places | None, plain: Tensor) -> Copy | None:
        """The copy of a matrix [out, in] that was just made; None if `places` are not where its numbers lie."""
        if places is None:
            return None
        made = cls(copy, memory_of(copy), places)
        return made if made._holds(plain) else None

    def write(self, plain: Tensor, where: Where) -> None:
        """Makes the numbers at `where` of the copy what they are in `plain`, which is contiguous."""
        shift = _SHIFTS.get((plain.dtype, self.memory.dtype))
        if HAVE_NUMBA and shift is not None:
            copy_words(_words(plain.view(-1)), where, plain.shape[1], *self.places, shift, _words(self.memory))
            return
        row, column = np.divmod(where, plain.shape[1])
        to = torch.from_numpy(self.places.row[row] + self.places.column[column])
        self.memory[to] = plain.view(-1)[torch.from_numpy(where)].to(self.memory.dtype)

    def _holds(self, plain: Tensor) -> bool:
        rows = np.unique(np.linspace(0, len(plain) - 1, NUM_TRIED).astype(np.int64))
        word = WORDS[self.memory.dtype]
        at = torch.from_numpy(self.places.row[rows, None] + self.places.column)
        expected = plain[torch.from_numpy(rows)].to(self.memory.dtype).view(word)
        return int(at.max()) < len(self.memory) and torch.equal(self.memory.view(word)[at], expected)


def _words(tensor: Tensor) -> NDArray[Any]:
    return tensor.view(WORDS[tensor.dtype]).numpy().view(_UNSIGNED[tensor.dtype])


def compile_kernel(storage: torch.dtype, computed: torch.dtype) -> None:
    """Has numba compile `copy_words` for these, or read it from its cache on disk, so that no update waits for it."""
    if HAVE_NUMBA and (storage, computed) in _SHIFTS:
        nothing = torch.zeros(0, dtype=computed)
        none = Copy(nothing, nothing, Places(np.zeros(0, np.int64), np.zeros(0, np.int64)))
        none.write(torch.zeros(0, 1, dtype=storage), np.zeros(0, np.int32))


# Any: numba's types are not Python's.
@jit
def copy_words(plain: Any, where: Any, num_columns: Any, row: Any, column: Any, shift: Any, copy: Any) -> Any:
    """copy[row[i] + column[j]] = plain[w] << shift for w = i * num_columns + j in `where`.

    Args:
        plain: [out * num_columns] unsigned words. where: [n] int32, at its fastest if it rises.
        row, column: as in `Places`. copy: [m] unsigned words.
    """
    first = end = begin = 0
    num, size = where.shape[0], plain.shape[0]
    for k in range(num):
        if k + _AHEAD < num:
            prefetch(plain, where[k + _AHEAD], size)
        at = where[k]
        if at < first or at >= end:  # another row than the last word's
            line = at // num_columns
            first, end, begin = line * num_columns, (line + 1) * num_columns, row[line]
        copy[begin + column[at - first]] = plain[at] << shift
