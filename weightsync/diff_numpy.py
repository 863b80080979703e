"""The diff kernels in plain numpy: the slow, obvious version, used where numba is not installed.

`diff` chooses between the two; a test holds them to the same bits. No I/O, no clock, no state.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weightsync.layout import AddressTable, Index, Words, address_step

Bytes = npt.NDArray[np.uint8]
Mixed = npt.NDArray[np.uint64]

ESCAPE = 15
"""Value code of a difference that stands in the escape plane."""

SKIP = 255
"""Gap byte that skips 255 words of which none changed."""

_CHUNK = 1 << 13
"""Words that are worked on at once, so that what lies between two steps stays in the second cache."""

_GAPS = 1 << 15
"""Gap bytes that are decoded at once: less is done with each of them, so that calls weigh more."""

_STEPS = np.arange(_GAPS)
_M64 = (1 << 64) - 1


_PAIRS = np.arange(256)[:, None] >> np.array([0, 4]) & 15

PAIR_DIFFERENCES = (((_PAIRS + 1) >> 1) ^ -((_PAIRS + 1) & 1)).astype(np.int8)
"""[256, 2] differences that a byte of the value plane says; of an escape, anything."""

PAIR_ESCAPES = (_PAIRS == ESCAPE).any(1)
"""[256]: is one of a byte's two codes an escape?"""

_ESCAPES = (_PAIRS == ESCAPE).view(np.uint16)[:, 0]
"""[256]: which of the two is, as two bytes."""


class Planes(NamedTuple):
    """A sparse difference of `num_changed` words, ready for a frame.

    gaps: [G] u8; b < 255 skips b words and the next one changed, 255 skips 255.
    values: [ceil(num_changed / 2)] u8, two codes a byte, low nibble first: zigzag(d) - 1, or 15 for an escape.
    escaped: [X] words, the differences of the escapes.
    digest_delta: what the bucket's digest gains, modulo 2^64.
    """

    gaps: Bytes
    values: Bytes
    escaped: Words
    num_changed: int
    digest_delta: int = 0


def digest_at(addresses: Index, words: Words) -> int:
    """Sum over i of mix64(addresses[i] << 16 | words[i]) mod 2^64; a 4-byte word counts as two half words.

    mix64 is splitmix64's finaliser, a bijection of 64-bit words.
    """
    total = 0
    for low in range(0, words.size, _CHUNK):
        some = slice(low, low + _CHUNK)
        total += _terms(_begun(addresses[some], 0, words.dtype.itemsize), words[some])
    return total & _M64


def _begun(positions: Index, start: int, width: int) -> list[Mixed]:
    """mix64's first step for a 0 at addresses start + positions; that of a word there differs in its own bits only.

    Of words of 4 bytes a second one, for their upper halves.
    """
    found = []
    for address in (start, start + 1)[: address_step(width)]:
        bases = positions.view(np.uint64) << np.uint64(16)
        bases += np.uint64(address << 16 & _M64)  # the start may lie before the first address
        bases ^= bases >> np.uint64(30)
        found.append(bases)
    return found


def _terms(begun: list[Mixed], words: Words) -> int:
    """Sum of the digest terms of words."""
    halves = [words & np.uint32(0xFFFF), words >> np.uint32(16)] if len(begun) == 2 else [words]
    found = 0
    for first, half in zip(begun, halves, strict=True):
        x = half.astype(np.uint64)  # before the xor, which would convert it in small pieces
        x ^= first
        found += _finished(x)
    return found


def _finished(x: Mixed) -> int:
    """Sum of what mix64's other steps make of x, which is overwritten."""
    x *= np.uint64(0xBF58476D1CE4E5B9)
    shifted = x >> np.uint64(27)
    x ^= shifted
    x *= np.uint64(0x94D049BB133111EB)
    np.right_shift(x, np.uint64(31), out=shifted)
    x ^= shifted
    return int(x.sum(dtype=np.uint64))


def digest_words(words: Words, start: int) -> int:
    """The digest of a contiguous run whose first word has address `start`."""
    step, total = address_step(words.dtype.itemsize), 0
    positions = _STEPS[:_CHUNK] * step
    for low in range(0, words.size, _CHUNK):
        piece = words[low : low + _CHUNK]
        total += _terms(_begun(positions[: piece.size], start + low * step, piece.dtype.itemsize), piece)
    return total & _M64


def addresses_of(positions: Index, table: AddressTable, width: int) -> Index:
    """Addresses of bucket positions."""
    segment = np.searchsorted(table.ends, positions, side="right")
    return table.bases[segment] + positions * address_step(width)


def encode_planes(old: Words, new: Words, table: AddressTable) -> Planes:
    """The difference new - old, as planes."""
    width = new.dtype.itemsize
    positions = np.flatnonzero(old != new)
    if positions.size == 0:
        empty = np.empty(0, np.uint8)
        return Planes(empty, empty, np.empty(0, new.dtype), 0)
    gap = np.diff(positions, prepend=-1) - 1
    ends = np.cumsum(gap // SKIP + 1)
    gaps = np.full(int(ends[-1]), SKIP, np.uint8)
    gaps[ends - 1] = gap % SKIP
    before, after = old[positions], new[positions]
    difference = after - before  # modulo 2^bits, as unsigned numpy words wrap
    codes = np.minimum(_zigzag(difference) - 1, ESCAPE).astype(np.uint8)
    addresses = addresses_of(positions, table, width)
    delta = (digest_at(addresses, after) - digest_at(addresses, before)) & _M64
    return Planes(gaps, pack_nibbles(codes), difference[codes == ESCAPE], positions.size, delta)


def sums(gaps: Bytes, values: Bytes) -> tuple[int, int, int]:
    """(gap bytes that only skip, sum of all gap bytes, escapes among all nibbles of the value plane)."""
    escapes = np.count_nonzero(values & 15 == ESCAPE) + np.count_nonzero(values >> 4 == ESCAPE)
    return int(np.count_nonzero(gaps == SKIP)), int(gaps.sum(dtype=np.int64)), int(escapes)


def running_sum(gaps: Bytes, sums: Index) -> None:
    """Fill [G] with the sum of all gap bytes up to each."""
    np.cumsum(gaps, out=sums)


def decode(
    planes: Planes, positions: Index, differences: Words, running_sum: Callable[[Bytes, Index], None] = running_sum
) -> None:
    """Fill positions, which rise, and differences of checked planes, [num_changed] each."""
    at, cursor, sums = 0, 0, np.empty(min(_GAPS, planes.gaps.size), np.int64)
    for low in range(0, planes.gaps.size, _GAPS):
        gaps = planes.gaps[low : low + _GAPS]
        running_sum(gaps, sums[: gaps.size])
        found = sums[: gaps.size][gaps != SKIP]
        here = positions[at : at + found.size]
        np.add(found, _STEPS[: found.size], out=here)  # each change before it is a word that no gap counts
        here += cursor
        at += found.size
        cursor += int(sums[gaps.size - 1]) + found.size
    _differences(planes, differences)


def _differences(planes: Planes, differences: Words) -> None:
    """Two codes at a time, by a table of all their pairs."""
    dtype, values = differences.dtype, planes.values
    pairs = PAIR_DIFFERENCES.astype(dtype).view(f"u{2 * dtype.itemsize}")[:, 0]
    even = differences.size >> 1
    np.take(pairs, values[:even], out=differences[: 2 * even].view(pairs.dtype), mode="clip")
    if differences.size & 1:
        differences[-1] = PAIR_DIFFERENCES.astype(dtype)[values[even], 0]
    if planes.escaped.size:
        escapes = np.take(_ESCAPES, values, mode="clip").view(np.bool_)
        differences[np.flatnonzero(escapes[: differences.size])] = planes.escaped


def add(words: Words, positions: Index, differences: Words, shift: int, start: int) -> int:
    """words[positions + shift] += differences; the digest's gain, if the address of position 0 is `start`."""
    found = 0
    target, shift = (words[shift:], 0) if shift > 0 else (words, shift)
    for low in range(0, positions.size, _CHUNK):
        here = positions[low : low + _CHUNK]
        places = here + shift if shift else here
        before = target.take(places)
        after = before + differences[low : low + _CHUNK]  # modulo 2^bits, as unsigned numpy words wrap
        target[places] = after
        found += gain(here, before, after, start)
    return found & _M64


def gain(positions: Index, before: Words, after: Words, start: int) -> int:
    """The digest's gain from words [n] that become others; the address of position 0 is `start`."""
    step, found = address_step(before.dtype.itemsize), 0
    for low in range(0, positions.size, _CHUNK):
        some = slice(low, low + _CHUNK)
        here = positions[some]
        begun = _begun(here * step if step > 1 else here, start, before.dtype.itemsize)
        found += _terms(begun, after[some]) - _terms(begun, before[some])
    return found & _M64


def apply_planes(target: Words, planes: Planes, table: AddressTable | None) -> int:
    """Add checked planes to `target` in place; the digest's gain, or 0 without a table."""
    positions, differences = np.empty(planes.num_changed, np.int64), np.empty(planes.num_changed, target.dtype)
    decode(planes, positions, differences)
    if table is None:
        target[positions] += differences
        return 0
    cuts, low, gain = np.searchsorted(positions, table.ends).tolist(), 0, 0
    for high, base in zip(cuts, table.bases.tolist(), strict=True):
        gain += add(target, positions[low:high], differences[low:high], 0, base)
        low = high
    return gain & _M64


def pack_nibbles(codes: Bytes) -> Bytes:
    """Two codes a byte, low nibble first; an odd count is padded with 0."""
    padded = np.append(codes, np.uint8(0)) if codes.size % 2 else codes
    packed: Bytes = padded[0::2] | (padded[1::2] << np.uint8(4))
    return packed


def _zigzag(difference: Words) -> Index:
    bits = difference.dtype.itemsize * 8
    d = difference.astype(np.int64)
    d -= (d >> (bits - 1)) << bits
    return (d << 1) ^ (d >> 63)
