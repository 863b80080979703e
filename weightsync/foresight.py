"""What a ticket will add, worked out while the engine samples: where each change goes, and which word it is added to.

The words are read, the digest's gain is known, and nothing is written. What is left for the pause is an addition per
change, which also looks whether the word is still the one that was read. Then the result is the one of which the digest
was compared, to the bit; else everything is made what it was, and the ticket is worked out in the pause.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weightsync import diff, diff_numpy, expected_words
from weightsync.digest import MASK
from weightsync.layout import Index, Words, address_step

Places = npt.NDArray[np.int32] | Index

_MOST_SHORT = (1 << 31) - 1


class Run(NamedTuple):
    """Changes of one storage: words[places] are to be `expected` now, and become expected + differences; [n] each.

    gain: of the digest.
    """

    words: Words
    places: Places
    expected: Words
    differences: Words
    gain: int

    @property
    def num_bytes(self) -> int:
        """Of memory, beside the storage."""
        return self.places.nbytes + self.expected.nbytes + self.differences.nbytes


def foresee(words: Words, positions: Index, differences: Words, shift: int, start: int) -> Run:
    """What words[positions + shift] += differences will do, in memory of its own; nothing is written.

    Args:
        words: [m] a storage.
        positions, differences: [n], rising positions.
        start: address of position 0.
    """
    short = words.size <= _MOST_SHORT
    places: Places = np.empty(positions.size, np.int32) if short else np.empty(positions.size, np.int64)
    expected, differences = np.empty(positions.size, words.dtype), differences.copy()
    if diff.HAVE_NUMBA:
        step = address_step(words.dtype.itemsize)
        gain = int(expected_words.foresee(words, positions, differences, shift, start, step, places, expected)) & MASK
    else:
        np.add(positions, shift, out=places, casting="same_kind")
        words.take(places, out=expected)
        gain = diff_numpy.gain(positions, expected, expected + differences, start)
    return Run(words, places, expected, differences, gain)


def add(runs: Sequence[Run]) -> bool:
    """Add all; False, with every word as it was, if a word is not the one that was foreseen."""
    for i, run in enumerate(runs):
        if not _add(run):
            subtract(runs[: i + 1])
            return False
    return True


def subtract(runs: Iterable[Run]) -> None:
    """Take back what was added, whatever it was added to."""
    for words, places, _, differences, _ in runs:
        words[places] -= differences  # modulo 2^bits


def _add(run: Run) -> bool:
    if diff.HAVE_NUMBA:
        return not expected_words.add(run.words, run.places, run.expected, run.differences)
    found = run.words.take(run.places)
    run.words[run.places] = found + run.differences
    return np.array_equal(found, run.expected)
