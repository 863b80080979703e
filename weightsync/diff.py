"""The diff kernels in numba, where it is installed: one fused pass over a bucket, one over the words that changed.

`planes`, `digest` and `engine_runs` call these or, without numba, `diff_numpy` and torch; tests hold them to the same
bits. No I/O, no clock. What a kernel calls stands in this file, or never changes: numba's cache looks at no other.

Where much has changed and the processor can, `encoder` gives the kernel of `diff_packed`. The other, `encode_by_bits`,
compares 64 words at a time into a 64-bit mask, walks its set bits, and writes gap bytes, value codes and digest terms
of a block while it is in the first cache; meanwhile it asks for the memory of the next block. numpy takes 10-20 times
as long. Adding is bound by memory: most changed words lie in a cache line of their own. Hence one pass, word by word,
that asks for the words of some hundred changes ahead; the processor overlaps a word's digest terms with the reads of
the next ones, which vectors of terms in a loop of their own would wait for.
"""

from typing import Any

import numpy as np

from weightsync import diff_packed
from weightsync.diff_numpy import ESCAPE, PAIR_DIFFERENCES, PAIR_ESCAPES, SKIP
from weightsync.mix64 import gained, term
from weightsync.vector import CAN_PACK, HAVE_NUMBA, differs64, jit, lowest_bit, num_bits, prefetch

__all__ = [
    "HAVE_NUMBA",
    "SLACK",
    "add",
    "apply",
    "count_changed",
    "decode",
    "digest_at",
    "digest_words",
    "encode_by_bits",
    "encoder",
    "pack",
]

BLOCK_WORDS = 2048
"""Words compared before their planes are written: a block, its positions and the next block fit the first cache."""

_AHEAD = 128
"""Changes for whose words `add` asks before it comes to them; for `apply`, gap bytes."""

_LINE_BYTES = 64

LEAST_PACKED_WORDS, LEAST_PACKED_SHARE = 1 << 18, 0.02
"""Buckets that `diff_packed` encodes. At 1 % changed it takes 1.1 of the time, at 3 % 0.9, at 10 % half; and compiling
it takes ten seconds, which small buckets would never give back."""

_FOUND = BLOCK_WORDS + 72
"""A whole block, and the unrolled walk's overshoot."""

SLACK = max(_FOUND, diff_packed.SLACK)
"""Room that `encode` wants past the words that changed."""


# The text of the kernels: numba's types are not Python's, hence Any.


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
def encode_by_bits(old: Any, new: Any, gaps: Any, codes: Any, escaped: Any, ends: Any, bases: Any, step: Any) -> Any:
    """(gap bytes or -1 when a buffer is too small, changed, escapes, digest's gain)."""
    n = new.shape[0]
    half = np.int64(1) << np.int64(8 * new.itemsize - 1)
    wrap = half << np.int64(1)
    line = _LINE_BYTES // new.itemsize
    found = np.empty(_FOUND, np.int64)
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
            gain += gained(address, old[position], new[position], step)
        while ahead < end:
            prefetch(old, ahead, end)
            prefetch(new, ahead, end)
            ahead += line
    return num_gaps, changed, num_escaped, gain


def encoder(num_words: int, share: float) -> Any:
    """The kernel that takes less time for a bucket: the same arguments, the same bits.

    Args:
        num_words: of the bucket.
        share: of its words that are likely to have changed.
    """
    packs = CAN_PACK and num_words >= LEAST_PACKED_WORDS and share >= LEAST_PACKED_SHARE
    return diff_packed.encode if packs else encode_by_bits


@jit
def pack(codes: Any, values: Any) -> None:
    """Two codes a byte, low nibble first."""
    n = codes.shape[0]
    for i in range(n >> 1):
        values[i] = codes[2 * i] | np.uint8(codes[2 * i + 1] << np.uint8(4))
    if n & 1:
        values[n >> 1] = codes[n - 1]


@jit
def decode(gaps: Any, values: Any, escaped: Any, positions: Any, differences: Any) -> None:
    """Positions and differences of checked planes."""
    cursor: Any = np.int64(0)
    count = used = 0
    for i in range(gaps.shape[0]):
        gap = np.int64(gaps[i])
        cursor += gap
        if gap != SKIP:
            positions[count] = cursor
            cursor += 1
            count += 1
    for i in range(count >> 1):
        pair = values[i]
        differences[2 * i] = PAIR_DIFFERENCES[pair, 0]
        differences[2 * i + 1] = PAIR_DIFFERENCES[pair, 1]
        if PAIR_ESCAPES[pair]:
            if pair & 15 == ESCAPE:
                differences[2 * i] = escaped[used]
                used += 1
            if pair >> 4 == ESCAPE:
                differences[2 * i + 1] = escaped[used]
                used += 1
    if count & 1:
        code = values[count >> 1]
        differences[count - 1] = escaped[used] if code == ESCAPE else PAIR_DIFFERENCES[code, 0]


@jit
def add(words: Any, positions: Any, differences: Any, shift: Any, start: Any, step: Any) -> Any:
    """words[positions[i] + shift] += differences[i]; the digest's gain, with addresses start + positions[i] * step."""
    gain = np.uint64(0)
    mask = np.uint64((1 << 8 * words.itemsize) - 1)
    last = positions.shape[0] - 1
    for i in range(positions.shape[0]):
        prefetch(words, positions[min(i + _AHEAD, last)] + shift, words.shape[0])
        position = positions[i]
        before = np.uint64(words[position + shift])
        after = (before + np.uint64(differences[i])) & mask
        words[position + shift] = after
        address = start + position * step
        gain += gained(address, before, after, step)
    return gain


@jit
def apply(target: Any, gaps: Any, values: Any, escaped: Any, ends: Any, bases: Any, step: Any) -> Any:
    """Add planes in place; the digest's gain, or 0 without segments.

    The planes must have passed the checks: there is no bounds check here.
    """
    mask = np.uint64((1 << 8 * target.itemsize) - 1)
    with_digest, end, base = ends.shape[0] > 0, np.int64(-1), np.int64(0)
    gain = np.uint64(0)
    cursor: Any = np.int64(0)
    front: Any = np.int64(0)
    count = used = segment = 0
    num_gaps = gaps.shape[0]
    for i in range(-min(_AHEAD, num_gaps), num_gaps):
        ahead = np.int64(gaps[min(i + _AHEAD, num_gaps - 1)])
        front += ahead
        prefetch(target, front, target.shape[0])
        front += np.int64(ahead != SKIP)
        if i < 0:
            continue
        gap = np.int64(gaps[i])
        cursor += gap
        if gap == SKIP:
            continue
        code = np.int64((values[count >> 1] >> np.uint8((count & 1) << 2)) & np.uint8(15))
        count += 1
        difference = np.int64(PAIR_DIFFERENCES[code, 0])
        if code == ESCAPE:
            difference = np.int64(escaped[used])
            used += 1
        before = np.uint64(target[cursor])
        after = (before + np.uint64(difference)) & mask
        target[cursor] = after
        if with_digest:
            while cursor >= end:  # these are locals: what lies in memory would be read again after each store
                end, base = ends[segment], bases[segment]
                segment += 1
            address = base + cursor * step
            gain += gained(address, before, after, step)
        cursor += 1
    return gain
