"""`diff.encode_by_bits` for processors that pack the chosen lanes of a vector (AVX-512 VBMI2): no branch for a change.

Words are compared 32 at a time. Of each group in which one differs, places, old and new words of the changes are packed
behind those of the groups before, so that value codes, gap bytes and digest terms are loops over what lies together,
of which LLVM makes vectors. They run when enough is held to be worth it, and at the end of a window, in which places
fit 16 bits. `diff` has the same bits for other processors; tests hold both to numpy's. No I/O, no clock. What a kernel
calls stands in this file, or never changes: numba's cache looks at no other.
"""

from typing import Any

import numpy as np

from weightsync.diff_numpy import ESCAPE, SKIP
from weightsync.mix64 import gained
from weightsync.vector import (
    LANES,
    at_least32,
    differs32,
    jit,
    narrow32,
    num_bits,
    pack32,
    pack_places32,
    prefetch,
)

BLOCK_WORDS = 2048
"""Words that are compared before their changes are packed, so that they are still in the first cache."""

WINDOW_WORDS = 1 << 16
"""Words among which places are counted; a multiple of the block."""

_ENOUGH = 512
"""Changes that are worth the beginnings and ends of the loops over them."""

_AHEAD = 1024
"""Words from the one compared to the one whose memory is asked for, which comes while this block is packed."""

_MOST = _ENOUGH + BLOCK_WORDS

_CODES_OF_SMALL = 7
"""Differences up to this one, and their complements, have value codes; others are escapes."""

SLACK = _MOST + 2 * LANES
"""Room that `encode` wants past the words that changed: all that is held, and whole vectors."""


# The text of the kernels: numba's types are not Python's, hence Any.


@jit
def _differing(old: Any, new: Any, lo: Any, full: Any, masks: Any, starts: Any) -> Any:
    """Which groups of 32 words differ, and where; how many do."""
    found: Any = 0
    for i in range(lo, full, LANES):
        prefetch(old, i + _AHEAD, old.shape[0])
        prefetch(new, i + _AHEAD, new.shape[0])
        mask = differs32(new, old, i)
        masks[found] = mask
        starts[found] = i
        found += np.int64(mask != np.uint32(0))
    return found


@jit
def _take(old: Any, new: Any, lo: Any, hi: Any, base: Any, groups: Any, held: Any, k: Any) -> Any:
    """Put the changes from `lo` to `hi` behind the `k` that are held; how many are held then."""
    masks, starts = groups
    places, before, after = held
    full = lo + ((hi - lo) & ~(LANES - 1))
    for j in range(_differing(old, new, lo, full, masks, starts)):
        at, mask = starts[j], masks[j]
        pack32(old, at, mask, before, k)
        pack32(new, at, mask, after, k)
        pack_places32(np.uint16(at - base), mask, places, k)
        k += num_bits(mask)
    for i in range(full, hi):
        if old[i] != new[i]:
            places[k], before[k], after[k] = i - base, old[i], new[i]
            k += 1
    return k


@jit
def _value_codes(before: Any, after: Any, k: Any, differences: Any, codes: Any, at: Any) -> None:
    """What zigzag(d) - 1 is, cut at ESCAPE, without a signed number: 2 d - 1, or 2 ~d of a negative one."""
    word = before.dtype.type
    small = word(_CODES_OF_SMALL)
    for i in range(k):
        difference = word(after[i] - before[i])
        inverse = word(~difference)
        differences[i] = difference
        code = np.uint8(ESCAPE)
        if difference <= small:
            code = np.uint8((difference << 1) - 1)
        if inverse <= small:
            code = np.uint8(inverse << 1)
        codes[at + i] = code


@jit
def _escapes(codes: Any, at: Any, k: Any, differences: Any, escaped: Any, num_escaped: Any) -> Any:
    """Append the differences of escapes; how many there are then."""
    for i in range(LANES):
        codes[at + k + i] = 0  # of the last vector
    for i in range(0, k, LANES):
        mask = at_least32(codes, at + i, np.uint64(ESCAPE))
        pack32(differences, i, mask, escaped, num_escaped)
        num_escaped += num_bits(mask)
    return num_escaped


@jit
def _skips(gap: Any, gaps: Any, at: Any) -> Any:
    """Write what one gap takes; where the next begins."""
    while gap >= 2 * SKIP:
        gaps[at] = SKIP
        at += 1
        gap -= SKIP
    more = np.int64(gap >= SKIP)  # no branch: it would be mispredicted at some percent changed
    gaps[at] = SKIP
    at += more
    gaps[at] = gap - SKIP * more
    return at + 1


@jit
def _gap_bytes(places: Any, k: Any, first: Any, distances: Any, gaps: Any, at: Any) -> Any:
    """Write the gaps before `k` changes, of which the first has a known one; where the next begins."""
    at = _skips(first, gaps, at)
    for i in range(1, k):
        distances[i - 1] = np.uint16(np.uint16(places[i] - places[i - 1]) - np.uint16(1))
    for i in range(0, k - 1, LANES):
        here = min(LANES, k - 1 - i)
        if at_least32(distances, i, np.uint64(SKIP)) == 0:
            narrow32(distances, i, gaps, at)
            at += here
        else:
            for j in range(i, i + here):
                at = _skips(np.int64(distances[j]), gaps, at)
    return at


@jit
def _gain(held: Any, low: Any, high: Any, start: Any, step: Any) -> Any:
    """The digest's gain from changes `low` to `high`, of one segment; the address of place 0 is `start`."""
    places, before, after = held
    gain = np.uint64(0)
    if step == 2:  # two loops: in one that asks for the step each word would get the terms of both
        for i in range(low, high):
            gain += gained(start + np.uint64(places[i]) * np.uint64(2), before[i], after[i], 2)
        return gain
    for i in range(low, high):
        gain += gained(start + np.uint64(places[i]), before[i], after[i], 1)
    return gain


@jit
def _gains(held: Any, k: Any, base: Any, ends: Any, bases: Any, segment: Any, step: Any) -> Any:
    """(gain from `k` changes, segment of the last)."""
    places, low, gain = held[0], 0, np.uint64(0)
    while True:
        while base + np.int64(places[low]) >= ends[segment]:
            segment += 1
        high = k
        if base + np.int64(places[k - 1]) >= ends[segment]:
            high = low
            while base + np.int64(places[high]) < ends[segment]:
                high += 1
        gain += _gain(held, low, high, np.uint64(bases[segment] + base * step), step)
        if high == k:
            return gain, segment
        low = high


@jit
def encode(old: Any, new: Any, gaps: Any, codes: Any, escaped: Any, ends: Any, bases: Any, step: Any) -> Any:
    """(gap bytes or -1 when a buffer is too small, changed, escapes, digest's gain)."""
    n = new.shape[0]
    groups = np.empty(BLOCK_WORDS // LANES + 1, np.uint32), np.empty(BLOCK_WORDS // LANES + 1, np.int64)
    before, after = np.empty(SLACK, new.dtype), np.empty(SLACK, new.dtype)
    held = np.empty(SLACK, np.uint16), before, after
    distances, differences = np.empty(SLACK, np.uint16), np.empty(SLACK, new.dtype)
    cursor: Any = 0
    num_gaps = changed = num_escaped = segment = 0
    gain = np.uint64(0)
    for base in range(0, n, WINDOW_WORDS):
        k, stop = 0, min(n, base + WINDOW_WORDS)
        for lo in range(base, stop, BLOCK_WORDS):
            hi = min(stop, lo + BLOCK_WORDS)
            k = _take(old, new, lo, hi, base, groups, held, k)
            if k == 0 or (k < _ENOUGH and hi < stop):
                continue
            room = num_gaps + k + (hi - cursor) // SKIP + LANES + 2 <= gaps.shape[0]
            if not room or changed + k + LANES > codes.shape[0] or num_escaped + k + LANES > escaped.shape[0]:
                return -1, changed, num_escaped, gain
            _value_codes(before, after, k, differences, codes, changed)
            num_escaped = _escapes(codes, changed, k, differences, escaped, num_escaped)
            num_gaps = _gap_bytes(held[0], k, base + np.int64(held[0][0]) - cursor, distances, gaps, num_gaps)
            here, segment = _gains(held, k, base, ends, bases, segment, step)
            gain += here
            changed += k
            cursor = base + np.int64(held[0][k - 1]) + 1
            k = 0
    return num_gaps, changed, num_escaped, gain
