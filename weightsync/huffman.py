"""A plane as a zstd frame of literals only, Huffman coded, by numba's kernels; any zstd reads it.

What zstd gains on gaps and value codes is its Huffman stage. Where one byte is common (the skips at 0.2 % changed, the
zeros at 50 %) its search finds runs of it that chance made, each of which costs more than the literals it replaces:
without them such a plane is 4-10 % smaller. zstd has no setting for that, so the frame is made here (RFC 8878, sections
3.1.1 and 4.2): blocks of 128 KiB in four streams, each with the code of the block before (a treeless one) or, where
that is worth its description, with its own.
"""

from typing import Any

import numpy as np

from weightsync.diff_numpy import Bytes
from weightsync.prefix_code import LONGEST, code_lengths, codes, cost_bits, describe
from weightsync.vector import HAVE_NUMBA, jit, store64

BLOCK = 1 << 17
"""Bytes of a block: the most that the format allows, and no more than the window that the header names."""

LEAST = 1 << 10
"""Bytes from which a plane is worth four streams; zstd does smaller ones."""

_SAMPLE, _COMMON = 1 << 12, 0.25
_MOST = (1 << 32) - 1
_HEADER = bytes.fromhex("28b52ffd8038")  # magic; content size of four bytes and a window; 2^(10 + 7) bytes of window
_STREAM = (BLOCK // 4 * LONGEST >> 3) + 64
_RAW, _REPEATED, _COMPRESSED = 0, 1, 2
_OWN_CODE, _CODE_BEFORE = 2, 3
_LITERALS_HEADER, _JUMPS = 5, 6
_SLACK = 4 * _STREAM


def has_runs(plane: Bytes) -> bool:
    """Is one byte of [n] so common that zstd would take chance for repeats? By a sample."""
    sample = plane[:: max(1, plane.size // _SAMPLE)]
    return plane.size >= LEAST and int(np.bincount(sample).max()) >= _COMMON * sample.size


def compress(plane: Bytes) -> bytes | None:
    """The frame, which may be larger than [n] bytes of `plane`; None if the plane is small, or numba is missing."""
    if not HAVE_NUMBA or not LEAST <= plane.size <= _MOST:
        return None
    out = np.empty(plane.size + 3 * (plane.size // BLOCK + 1) + _SLACK, np.uint8)
    head = np.frombuffer(_HEADER + plane.size.to_bytes(4, "little"), np.uint8)
    out[: head.size] = head
    end = _blocks(plane, out, head.size)
    return out[:end].tobytes()


# The text of the kernels: numba's types are not Python's, hence Any.


@jit
def _blocks(plane: Any, out: Any, at: Any) -> Any:
    """Write every block; the end of what was written."""
    lengths, tried = np.zeros(256, np.uint8), np.zeros(256, np.uint8)
    table = np.zeros(256, np.uint32)
    described, streams = np.empty(256, np.uint8), np.empty(4 * _STREAM, np.uint8)
    n = plane.shape[0]
    for lo in range(0, n, BLOCK):
        block = plane[lo : min(n, lo + BLOCK)]
        size = block.shape[0]
        last = np.int64(lo + size == n)
        counts = _counts(block)
        if code_lengths(counts, tried) == 1:
            _put(out, at, last | _REPEATED << 1 | size << 3, 3)
            out[at + 3] = block[0]
            at += 4
            continue
        described_bytes = describe(tried, described)
        own, before = cost_bits(counts, tried), cost_bits(counts, lengths)
        kind = _CODE_BEFORE
        if described_bytes > 0 and (before < 0 or own + 8 * described_bytes < before):
            kind, before = _OWN_CODE, own + 8 * described_bytes
            _copy(tried, 0, 256, lengths, 0)
            codes(lengths, table)
        # Streams end at whole bytes; the rest is the headers of the block.
        if size < 256 or before < 0 or (before >> 3) + 4 + 1 + _LITERALS_HEADER + _JUMPS >= size:
            _put(out, at, last | _RAW << 1 | size << 3, 3)
            at = _copy(block, 0, size, out, at + 3)
            if kind == _OWN_CODE:
                lengths[:] = 0  # its description was not sent
            continue
        start = at + 3
        at = start + _LITERALS_HEADER
        if kind == _OWN_CODE:
            at = _copy(described, 0, described_bytes, out, at)
        at = _four_streams(block, table, streams, out, at)
        literals = at - start - _LITERALS_HEADER
        _put(out, start, kind | 3 << 2 | size << 4 | literals << 22, _LITERALS_HEADER)
        out[at] = 0  # no sequences
        at += 1
        _put(out, start - 3, last | _COMPRESSED << 1 | (at - start) << 3, 3)
    return at


@jit
def _counts(block: Any) -> Any:
    # Four tables, so that equal neighbours do not wait for each other's store.
    parts = np.zeros(4 * 256, np.int64)
    n = block.shape[0]
    for i in range(0, n & ~3, 4):
        for j in range(4):
            parts[256 * j + block[i + j]] += 1
    for i in range(n & ~3, n):
        parts[block[i]] += 1
    for i in range(256):
        parts[i] += parts[256 + i] + parts[512 + i] + parts[768 + i]
    return parts


@jit
def _copy(source: Any, begin: Any, end: Any, out: Any, at: Any) -> Any:
    """Bytes from begin to end, to out[at:]; where they end there."""
    for i in range(end - begin):
        out[at + i] = source[begin + i]
    return at + end - begin


@jit
def _put(out: Any, at: Any, value: Any, count: Any) -> Any:
    for i in range(count):
        out[at + i] = np.uint8((value >> (8 * i)) & 255)


@jit
def _add(bits: Any, count: Any, entry: Any) -> Any:
    """(bits, how many) with a symbol's code on top; an entry is a code with its length above bit 16."""
    return bits | np.uint64(entry & np.uint32(0xFFFF)) << np.uint64(count), count + np.int64(entry >> np.uint32(16))


@jit
def _flush(out: Any, at: Any, bits: Any, count: Any) -> Any:
    """(place, bits, how many) after the whole bytes were written."""
    store64(out, at, bits)
    return at + (count >> 3), bits >> np.uint64(count & ~7), count & 7


@jit
def _four_streams(block: Any, table: Any, streams: Any, out: Any, at: Any) -> Any:
    """Jump table and four streams of a block, each from its last symbol to its first; the end of what was written."""
    quarter = (block.shape[0] + 3) >> 2
    fourth = block.shape[0] - 3 * quarter
    b0 = b1 = b2 = b3 = np.uint64(0)
    n0 = n1 = n2 = n3 = 0
    a0, a1, a2, a3 = 0, _STREAM, 2 * _STREAM, 3 * _STREAM
    # The fourth is up to three symbols shorter, and a multiple of four is left for the loop.
    for i in range(quarter - 1, (fourth & ~3) - 1, -1):
        b0, n0 = _add(b0, n0, table[block[i]])
        b1, n1 = _add(b1, n1, table[block[quarter + i]])
        b2, n2 = _add(b2, n2, table[block[2 * quarter + i]])
        a0, b0, n0 = _flush(streams, a0, b0, n0)
        a1, b1, n1 = _flush(streams, a1, b1, n1)
        a2, b2, n2 = _flush(streams, a2, b2, n2)
        if i < fourth:
            b3, n3 = _add(b3, n3, table[block[3 * quarter + i]])
            a3, b3, n3 = _flush(streams, a3, b3, n3)
    for top in range((fourth & ~3) - 1, -1, -4):
        for j in range(4):  # 4 * LONGEST + 7 bits fit the register
            b0, n0 = _add(b0, n0, table[block[top - j]])
            b1, n1 = _add(b1, n1, table[block[quarter + top - j]])
            b2, n2 = _add(b2, n2, table[block[2 * quarter + top - j]])
            b3, n3 = _add(b3, n3, table[block[3 * quarter + top - j]])
        a0, b0, n0 = _flush(streams, a0, b0, n0)
        a1, b1, n1 = _flush(streams, a1, b1, n1)
        a2, b2, n2 = _flush(streams, a2, b2, n2)
        a3, b3, n3 = _flush(streams, a3, b3, n3)
    ends = (_close(streams, a0, b0, n0), _close(streams, a1, b1, n1), _close(streams, a2, b2, n2))
    last = _close(streams, a3, b3, n3)
    jumps = at
    at += _JUMPS
    for s in range(3):
        _put(out, jumps + 2 * s, ends[s] - s * _STREAM, 2)
        at = _copy(streams, s * _STREAM, ends[s], out, at)
    return _copy(streams, 3 * _STREAM, last, out, at)


@jit
def _close(out: Any, at: Any, bits: Any, count: Any) -> Any:
    """The end of a stream, whose highest bit says where its codes begin."""
    store64(out, at, bits | np.uint64(1) << np.uint64(count))
    return at + ((count + 8) >> 3)
