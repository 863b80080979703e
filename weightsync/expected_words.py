"""Adding in two passes, in numba: one that reads and tells what will come of it, one that adds to what was expected.

`foresight` calls these or, without numba, numpy; tests hold them to the same bits.
"""

from typing import Any

import numpy as np

from weightsync.mix64 import gained
from weightsync.vector import jit, prefetch

_AHEAD = 128
"""Changes for whose words is asked before it is come to them."""


# The text of the kernels: numba's types are not Python's, hence Any.


@jit
def foresee(
    words: Any, positions: Any, differences: Any, shift: Any, start: Any, step: Any, places: Any, expected: Any
) -> Any:
    """The digest's gain of words[positions + shift] += differences; fills places and expected, writes no word."""
    gain = np.uint64(0)
    mask = np.uint64((1 << 8 * words.itemsize) - 1)
    last = positions.shape[0] - 1
    for i in range(positions.shape[0]):
        prefetch(words, positions[min(i + _AHEAD, last)] + shift, words.shape[0])
        position = positions[i]
        before = np.uint64(words[position + shift])
        after = (before + np.uint64(differences[i])) & mask
        places[i] = position + shift
        expected[i] = before
        gain += gained(start + position * step, before, after, step)
    return gain


@jit
def add(words: Any, places: Any, expected: Any, differences: Any) -> Any:
    """words[places] += differences; 0 if each was what is expected, else the bits in which some were not."""
    wrong = np.uint64(0)
    mask = np.uint64((1 << 8 * words.itemsize) - 1)
    last = places.shape[0] - 1
    for i in range(places.shape[0]):
        prefetch(words, np.int64(places[min(i + _AHEAD, last)]), words.shape[0])
        place = np.int64(places[i])
        before = np.uint64(words[place])
        wrong |= before ^ np.uint64(expected[i])
        words[place] = (before + np.uint64(differences[i])) & mask
    return wrong
