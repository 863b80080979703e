"""Compile the kernels of publishing before they are needed: done at the first delta, it would hold that one up."""

from collections.abc import Iterable

import numpy as np

from weightsync import huffman
from weightsync.diff import LEAST_PACKED_WORDS
from weightsync.digest import digest
from weightsync.layout import WORD_DTYPE, AddressTable
from weightsync.planes import Scratch, apply_planes, check_planes, count_changed, encode_planes
from weightsync.vector import HAVE_NUMBA

_NUM_WORDS = 64


def compile_kernels(widths: Iterable[int] = (2,), bucket_words: int = 1) -> None:
    """Have numba compile what encoding, adding and digests run, or read it from its cache on disk.

    It takes some seconds of one core the first time on a machine, and may run in a thread beside other work; whoever
    needs a kernel meanwhile waits for it. Without numba there is nothing to do.

    Args:
        widths: bytes of the words that are published, of weightsync.layout.WORD_DTYPE.
        bucket_words: most words of a bucket; large ones have a kernel more.
    """
    if not HAVE_NUMBA:
        return
    table = _table(_NUM_WORDS)
    for width in widths:
        old = np.zeros(_NUM_WORDS, WORD_DTYPE[width])
        new = np.arange(_NUM_WORDS, dtype=WORD_DTYPE[width])
        count_changed(old, new)
        planes = encode_planes(old, new, table, Scratch())
        check_planes(planes, _NUM_WORDS, "warming up")
        apply_planes(old, planes, table)
        digest(new, 0)
        if bucket_words >= LEAST_PACKED_WORDS:
            large = np.zeros(LEAST_PACKED_WORDS, WORD_DTYPE[width])
            encode_planes(large, large.copy(), _table(LEAST_PACKED_WORDS), Scratch(share=1.0))
    huffman.compress(np.frombuffer(bytes(range(8)) * (huffman.LEAST // 8), np.uint8))


def _table(num_words: int) -> AddressTable:
    return AddressTable(np.array([num_words], np.int64), np.zeros(1, np.int64))
