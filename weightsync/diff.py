"""The diff kernels in numba, where it is installed: one fused pass over a bucket.

`planes`, `digest` and `engine_words` call these or, without numba, `diff_numpy` and torch; tests hold them to the
same bits. No I/O, no clock.

The fused pass compares 64 words at a time into a 64-bit mask, walks its set bits, and writes gap bytes, value codes and
digest terms of a block while it is in the first cache; meanwhile it asks for the memory of the next block. numpy takes
10-20 times as long.
"""

from typing import Any

import numpy as np

from weightsync.diff_numpy import ESCAPE, SKIP
from weightsync.vector import HAVE_NUMBA, differs64, inlined, jit, lowest_bit, num_bits, prefetch

__all__ = ["HAVE_NUMBA", "SLACK", "count_changed", "digest_at", "digest_words", "encode", "pack", "term"]

BLOCK_WORDS = 2048
"""Words compared before their planes are written: a block, its positions and the next block fit the first cache."""

_LINE_BYTES = 64

SLACK = BLOCK_WORDS + 72
"""Room that `encode` wants past the words that changed: a whole block, and the unrolled walk's overshoot."""


# The text of the kernels: numba's types are not Python's, hence Any.


@inlined
def _mix64(x: Any) -> Any:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@inlined
def term(address: Any, word: Any, step: Any) -> Any:
    base = np.uint64(address) << np.uint64(16)
    if step == 2:
        high = _mix64(base + np.uint64(0x10000) + (np.uint64(word) >> np.uint64(16)))
        return _mix64(base + (np.uint64(word) & np.uint64(0xFFFF))) + high
    return _mix64(base + np.uint64(word))


@jit
def digest_words(words: Any, start: Any, step: Any) -> Any:
    """Sum of the digest terms of a contiguous run."""
    total = np.uint64(0)
    for i in range(words.shape[0]):
        total += term(start + i * step, words[i], step)
    return total


@jit
def digest_at(addresses: Any, words: Any, step: Any) -> Any:
    """Sum of the digest terms of words at addresses."""
    total = np.uint64(0)
    for i in range(words.shape[0]):
        total += term(addresses[i], words[i], step)
    return total


@jit
def _changed_positions(old: Any, new: Any, lo: Any, hi: Any, found: Any) -> Any:
    count = 0
    full = lo + ((hi - lo) & ~63)
    for i in range(lo, full, 64):
        mask = differs64(new, i, old, i)
        here = num_bits(mask)
        # Up to eight are written without a branch per bit; what lies past `here` is overwritten by the next step.
        for j in range(4):
            found[count + j] = i + lowest_bit(mask)
            mask &= mask - np.uint64(1)
        if here > 4:
            for j in range(4, 8):
                found[count + j] = i + lowest_bit(mask)
                mask &= mask - np.uint64(1)
            at = count + 8
            while mask:
                found[at] = i + lowest_bit(mask)
                mask &= mask - np.uint64(1)
                at += 1
        count += here
    for i in range(full, hi):
        if new[i] != old[i]:
            found[count] = i
            count += 1
    return count


@jit
def count_changed(old: Any, new: Any) -> Any:
    """How many words differ."""
    n = new.shape[0]
    full = n & ~63
    count = 0
    for i in range(0, full, 64):
        count += num_bits(differs64(new, i, old, i))
    for i in range(full, n):
        count += new[i] != old[i]
    return count


@jit
def encode(old: Any, new: Any, gaps: Any, codes: Any, escaped: Any, ends: Any, bases: Any, step: Any) -> Any:
    """(gap bytes or -1 when a buffer is too small, changed, escapes, digest's gain)."""
    n = new.shape[0]
    half = np.int64(1) << np.int64(8 * new.itemsize - 1)
    wrap = half << np.int64(1)
    line = _LINE_BYTES // new.itemsize
    found = np.empty(SLACK, np.int64)
    num_gaps = changed = num_escaped = cursor = segment = 0
    gain = np.uint64(0)
    for lo in range(0, n, BLOCK_WORDS):
        hi = min(n, lo + BLOCK_WORDS)
        k = _changed_positions(old, new, lo, hi, found)
        room = num_gaps + k + (hi - cursor) // SKIP + 2 <= gaps.shape[0]
        if not room or changed + k > codes.shape[0] or num_escaped + k > escaped.shape[0]:
            return -1, changed, num_escaped, gain
        ahead, end = hi, min(n, hi + BLOCK_WORDS)
        for j in range(k):
            prefetch(old, ahead, end)
            prefetch(new, ahead, end)
            ahead += line
            position = found[j]
            gap = position - cursor
            cursor = position + 1
            while gap >= SKIP:
                gaps[num_gaps] = SKIP
                num_gaps += 1
                gap -= SKIP
            gaps[num_gaps] = gap
            num_gaps += 1
            difference = (np.int64(new[position]) - np.int64(old[position])) & (wrap - 1)
            signed = difference - wrap if difference >= half else difference
            code: Any = ((signed << np.int64(1)) ^ (signed >> np.int64(63))) - 1
            if code >= ESCAPE:
                escaped[num_escaped] = difference
                num_escaped += 1
                code = ESCAPE
            codes[changed + j] = code
        changed += k
        # A loop of its own, so that the one above stays free of the long chain of multiplications.
        for j in range(k):
            prefetch(old, ahead, end)
            prefetch(new, ahead, end)
            ahead += line
            position = found[j]
            while position >= ends[segment]:
                segment += 1
            address = bases[segment] + position * step
            gain += term(address, new[position], step) - term(address, old[position], step)
        while ahead < end:
            prefetch(old, ahead, end)
            prefetch(new, ahead, end)
            ahead += line
    return num_gaps, changed, num_escaped, gain


@jit
def pack(codes: Any, values: Any) -> None:
    """Two codes a byte, low nibble first."""
    n = codes.shape[0]
    for i in range(n >> 1):
        values[i] = codes[2 * i] | np.uint8(codes[2 * i + 1] << np.uint8(4))
    if n & 1:
        values[n >> 1] = codes[n - 1]
