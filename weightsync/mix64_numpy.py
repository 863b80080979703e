"""The digest's arithmetic in plain numpy: sums of mix64(address << 16 | word) over many words, modulo 2^64.

mix64 is splitmix64's finaliser, a bijection of 64-bit words; `mix64` has it for numba's kernels. Each step is a pass
over some thousand words, in memory that stays in the second cache. A word of 4 bytes counts as two half words. No I/O,
no clock, no state.
"""

import numpy as np
import numpy.typing as npt

from weightsync.layout import Index, Words, address_step

Mixed = npt.NDArray[np.uint64]

CHUNK = 1 << 14
"""Words that are worked on at once: more than a call of numpy weighs, and few enough for the second cache."""

_M64 = (1 << 64) - 1
_BITS = 14
"""Bits of an address that mix64's first step drops: a block of 2^14 addresses shares all that the step adds to them."""


def _constant(value: int) -> Mixed:
    """Of no dimension: numpy makes such an array out of a scalar at every call, which takes as long as the call."""
    return np.array(value, np.uint64)


_FIRST, _SECOND = _constant(0xBF58476D1CE4E5B9), _constant(0x94D049BB133111EB)
_16, _17, _27, _30, _31 = (_constant(value) for value in (16, 17, 27, 30, 31))
_STEPS = np.arange(1 << _BITS, dtype=np.uint64) << _16


class Terms:
    """Sums of digest terms, in memory that is kept from one to the next; of one thread."""

    def __init__(self, most: int) -> None:
        """`most`: words of a call's arrays at most, as far as the caller knows; more are taken in pieces."""
        self._rows = np.empty((3, min(CHUNK, max(1, most))), np.uint64)

    def gain(self, positions: Index, before: Words, after: Words, start: int) -> int:
        """The digest's gain from words [n] that become others, modulo 2^64; the address of position 0 is `start`."""
        return self._sum(positions, start, address_step(before.dtype.itemsize), ((after, 1), (before, -1)))

    def digest_at(self, addresses: Index, words: Words) -> int:
        """Sum of the terms of words [n] at addresses [n], modulo 2^64."""
        return self._sum(addresses, 0, 1, ((words, 1),))

    def digest_words(self, words: Words, start: int) -> int:
        """Sum of the terms of a contiguous run whose first word has address `start`, modulo 2^64."""
        if words.dtype.itemsize == 4:
            words = np.ascontiguousarray(words).view(np.uint16)  # the machine's byte order is little
        _, x, other = self._rows
        total = low = 0
        while low < words.size:
            block, first = divmod(start + low, 1 << _BITS)
            piece = words[low : low + min(x.size, (1 << _BITS) - first)]
            here = x[: piece.size]
            np.copyto(here, piece)
            np.bitwise_xor(here, _STEPS[first : first + piece.size], here)
            # The rest of the address, and what mix64's first step makes of it, is the same for the whole block.
            np.bitwise_xor(here, _constant((block << (_BITS + 16) ^ block) & _M64), here)
            total += _finished(here, other[: piece.size])
            low += piece.size
        return total & _M64

    def _sum(self, positions: Index, start: int, step: int, signed: tuple[tuple[Words, int], ...]) -> int:
        """Sum of sign * term of words at start + positions * step."""
        width, found = signed[0][0].dtype.itemsize, 0
        for low in range(0, positions.size, self._rows.shape[1]):
            some = slice(low, low + self._rows.shape[1])
            here = positions[some].view(np.uint64)
            begun, x, other = self._rows[:, : here.size]
            for half in range(address_step(width)):
                np.left_shift(here, _17 if step == 2 else _16, begun)
                np.add(begun, _constant((start + half) << 16 & _M64), begun)  # it may lie before the first address
                np.right_shift(begun, _30, other)
                np.bitwise_xor(begun, other, begun)
                for words, sign in signed:
                    np.copyto(x, _half(words[some], half))  # before the xor, which would convert it in small pieces
                    np.bitwise_xor(x, begun, x)
                    found += sign * _finished(x, other)
        return found & _M64


def _half(words: Words, which: int) -> Words:
    """The lower or upper half words of words of 4 bytes; others as they are."""
    return np.ascontiguousarray(words).view(np.uint16)[which::2] if words.dtype.itemsize == 4 else words


def _finished(x: Mixed, other: Mixed) -> int:
    """Sum of what mix64's other steps make of x; both are overwritten."""
    np.multiply(x, _FIRST, x)
    np.right_shift(x, _27, other)
    np.bitwise_xor(x, other, x)
    np.multiply(x, _SECOND, x)
    np.right_shift(x, _31, other)
    np.bitwise_xor(x, other, x)
    return int(np.add.reduce(x))
