"""What a ticket will add, worked out while the engine samples: where each change goes, and which word it is added to.

The words are read, the digest's gain is known, and nothing is written. What is left for the pause is an addition per
change, which also looks whether the word is still the one that was read. Then the result is the one of which the digest
was compared, to the bit; else everything is made what it was, and the ticket is worked out in the pause.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from weightsync import diff, expected_words, expected_words_numpy
from weightsync.digest import MASK
from weightsync.expected_words_numpy import Places
from weightsync.layout import Index, Words, address_step

_MOST_SHORT = (1 << 31) - 1
_ALIGN = 8


class Run(NamedTuple):
    """Changes of one storage: words[places] are to be `expected` now, and become expected + differences; [n] each.

    gain: of the digest.
    """

    words: Words
    places: Places
    expected: Words
    differences: Words
    gain: int


class Pool:
    """Memory for the runs of one ticket, kept for the next one's: the system clears every page that it gives out."""

    def __init__(self) -> None:
        self._bytes, self._used = np.empty(0, np.uint8), 0

    def begin(self, num_bytes: int) -> None:
        """Room for so many bytes, `bytes_for` of all runs; what was taken before is no longer valid."""
        if self._bytes.size < num_bytes:
            self._bytes = np.empty(num_bytes + num_bytes // 4, np.uint8)
        self._used = 0

    def take(self, count: int, dtype: np.dtype[Any]) -> Any:
        """[count] of any content; Any: of whatever type."""
        begin = self._used
        self._used += -(-count * dtype.itemsize // _ALIGN) * _ALIGN
        return self._bytes[begin : begin + count * dtype.itemsize].view(dtype)


def bytes_for(num_changes: int, width: int, num_runs: int) -> int:
    """Of memory that runs with so many changes of words of `width` bytes take at most."""
    return num_changes * (8 + 2 * width) + 3 * _ALIGN * num_runs


def foresee(words: Words, positions: Index, differences: Words, shift: int, start: int, pool: Pool) -> Run:
    """What words[positions + shift] += differences will do, in memory of the pool; nothing is written.

    Args:
        words: [m] a storage.
        positions, differences: [n], rising positions.
        start: address of position 0.
    """
    short = words.size <= _MOST_SHORT and diff.HAVE_NUMBA  # numpy would make it long again at each use
    places: Places = pool.take(positions.size, np.dtype(np.int32 if short else np.int64))
    expected: Words = pool.take(positions.size, words.dtype)
    kept: Words = pool.take(positions.size, words.dtype)
    kept[:], differences = differences, kept
    if diff.HAVE_NUMBA:
        step = address_step(words.dtype.itemsize)
        gain = int(expected_words.foresee(words, positions, differences, shift, start, step, places, expected)) & MASK
    else:
        gain = expected_words_numpy.foresee(words, positions, differences, shift, start, places, expected)
    return Run(words, places, expected, differences, gain)


def add(run: Run) -> bool:
    """Add all of a run; was each word the one that was foreseen? If not, `subtract`."""
    if diff.HAVE_NUMBA:
        return not expected_words.add(run.words, run.places, run.expected, run.differences)
    return expected_words_numpy.add(run.words, run.places, run.expected, run.differences)


def subtract(runs: Iterable[Run]) -> None:
    """Take back what was added, whatever it was added to."""
    for words, places, _, differences, _ in runs:
        expected_words_numpy.subtract(words, places, differences)
