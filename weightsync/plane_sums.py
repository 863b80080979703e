"""What the checks of planes count, in numba, where it is installed; `planes` calls this or `diff_numpy`."""

from typing import Any

import numpy as np

from weightsync.diff_numpy import ESCAPE, SKIP
from weightsync.vector import jit

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
