"""The kernels that read planes and add them, in numba, where it is installed.

`planes` and `engine_runs` call these or, without numba, those of `diff_numpy`; tests hold them to the same bits. No
I/O, no clock.

Adding is bound by memory: most changed words lie in a cache line of their own. Hence one pass, word by word, that asks
for the words of some hundred changes ahead; the processor overlaps a word's digest terms with the reads of the next
ones, which vectors of terms in a loop of their own would wait for.
"""

from typing import Any

import numpy as np

from weightsync.diff import term
from weightsync.diff_numpy import ESCAPE, PAIR_DIFFERENCES, PAIR_ESCAPES, SKIP
from weightsync.vector import jit, prefetch

_AHEAD = 128
"""Changes for whose words `add` asks before it comes to them; for `apply`, gap bytes."""

_SUMMED = 1 << 23
"""Bytes whose sum fits 32 bits, so that a vector has many lanes; such a loop stands alone, or it gets no vectors."""


# The text of the kernels: numba's types are not Python's, hence Any.


@jit
def sums(gaps: Any, values: Any) -> Any:
    """(gap bytes that only skip, sum of all gap bytes, escapes among all nibbles of the value plane)."""
    skips, total, escapes = np.int64(0), np.int64(0), np.int64(0)
    for low in range(0, gaps.shape[0], _SUMMED):
        here, part = _gap_sums(gaps[low : low + _SUMMED])
        skips += np.int64(here)
        total += np.int64(part)
    for low in range(0, values.shape[0], _SUMMED):
        escapes += np.int64(_escapes(values[low : low + _SUMMED]))
    return skips, total, escapes


@jit
def _gap_sums(gaps: Any) -> Any:
    skips, total = np.uint32(0), np.uint32(0)
    for i in range(gaps.shape[0]):
        skips = np.uint32(skips + np.uint32(gaps[i] == np.uint8(SKIP)))
        total = np.uint32(total + gaps[i])
    return skips, total


@jit
def _escapes(values: Any) -> Any:
    count = np.uint32(0)
    for i in range(values.shape[0]):
        count = np.uint32(count + np.uint32((values[i] & np.uint8(15)) == np.uint8(ESCAPE)))
    for i in range(values.shape[0]):
        count = np.uint32(count + np.uint32(values[i] >= np.uint8(ESCAPE << 4)))
    return count


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
        gain += term(address, after, step) - term(address, before, step)
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
            gain += term(address, after, step) - term(address, before, step)
        cursor += 1
    return gain
