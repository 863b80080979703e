"""Adding in two passes, in plain numpy: what `expected_words` does where numba is installed.

In pieces that stay in the second cache between the steps. `foresight` calls these; tests hold both to the same bits.
"""

import numpy as np
import numpy.typing as npt

from weightsync.layout import Index, Words
from weightsync.mix64_numpy import Terms

Places = npt.NDArray[np.int32] | Index

_CHUNK = 1 << 14


def foresee(
    words: Words, positions: Index, differences: Words, shift: int, start: int, places: Places, expected: Words
) -> int:
    """The digest's gain of words[positions + shift] += differences; fills places and expected, writes no word.

    Args:
        positions, differences, places, expected: [n] each.
        start: address of position 0.
    """
    found, terms = 0, Terms(positions.size)
    np.add(positions, shift, out=places, casting="same_kind")
    for low in range(0, positions.size, _CHUNK):
        some = slice(low, low + _CHUNK)
        words.take(places[some], out=expected[some], mode="clip")  # any other mode makes a copy
        found += terms.gain(positions[some], expected[some], expected[some] + differences[some], start)
    return found


def add(words: Words, places: Places, expected: Words, differences: Words) -> bool:
    """words[places] += differences, modulo 2^bits; was each what is expected?"""
    same = True
    for low in range(0, places.size, _CHUNK):
        some = slice(low, low + _CHUNK)
        here = places[some]
        found = words.take(here)
        same = same and np.array_equal(found, expected[some])
        found += differences[some]
        words[here] = found
    return same


def subtract(words: Words, places: Places, differences: Words) -> None:
    """words[places] -= differences, modulo 2^bits."""
    for low in range(0, places.size, _CHUNK):
        here = places[low : low + _CHUNK]
        words[here] -= differences[low : low + _CHUNK]
