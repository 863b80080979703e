"""The diff kernels in plain numpy, used where numba is not installed.

`planes` and `engine_runs` choose between the two; tests hold them to the same bits. Where much is done, it is done in
passes over as much as stays in the second cache. No I/O, no clock, no state.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weightsync.layout import AddressTable, Index, Words, address_step
from weightsync.mix64_numpy import Terms

Bytes = npt.NDArray[np.uint8]

ESCAPE = 15
"""Value code of a difference that stands in the escape plane."""

SKIP = 255
"""Gap byte that skips 255 words of which none changed."""

_CHUNK = 1 << 14
"""Changes that are added at once: their words and what is worked out of them stay in the second cache."""

_GAPS = 1 << 15
"""Gap bytes that are decoded at once: less is done with each of them, so that calls weigh more."""

_M64 = (1 << 64) - 1

_PAIRS = np.arange(256)[:, None] >> np.array([0, 4]) & 15

PAIR_DIFFERENCES = (((_PAIRS + 1) >> 1) ^ -((_PAIRS + 1) & 1)).astype(np.int8)
"""[256, 2] differences that a byte of the value plane says; of an escape, anything."""

PAIR_ESCAPES = (_PAIRS == ESCAPE).any(1)
"""[256]: is one of a byte's two codes an escape?"""


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
    """Sum over i of mix64(addresses[i] << 16 | words[i]) mod 2^64; a 4-byte word counts as two half words."""
    return Terms(words.size).digest_at(addresses, words)


def digest_words(words: Words, start: int) -> int:
    """The digest of a contiguous run whose first word has address `start`."""
    return Terms(2 * words.size).digest_words(words, start)


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
    skips, total, escapes = 0, 0, 0
    for low in range(0, gaps.size, _GAPS):
        piece = gaps[low : low + _GAPS]
        skips += int(np.count_nonzero(piece == SKIP))
        total += int(piece.sum(dtype=np.uint32))
    for low in range(0, values.size, _GAPS):
        piece = values[low : low + _GAPS]
        escapes += int(np.count_nonzero(piece & 15 == ESCAPE)) + int(np.count_nonzero(piece >= ESCAPE << 4))
    return skips, total, escapes


def running_sum(numbers: Index) -> None:
    """Replace each of [n] numbers by the sum of all up to it."""
    np.cumsum(numbers, out=numbers)


def decode(
    planes: Planes, positions: Index, differences: Words, running_sum: Callable[[Index], None] = running_sum
) -> None:
    """Fill positions, which rise, and differences of checked planes, [num_changed] each."""
    at, last, room = 0, -1, np.empty(min(_GAPS, planes.gaps.size), np.int64)
    for low in range(0, planes.gaps.size, _GAPS):
        gaps = planes.gaps[low : low + _GAPS]
        changes = gaps != SKIP
        reached = room[: gaps.size]
        reached[:] = gaps + changes.view(np.uint8)  # a change is a word that its gap does not count
        reached[0] += last
        running_sum(reached)
        last = int(reached[-1])
        found = reached[changes]
        positions[at : at + found.size] = found
        at += found.size
    _differences(planes, differences)


def _differences(planes: Planes, differences: Words) -> None:
    """zigzag's other way, in bytes: of a whole vector of codes a step takes as long as a look into a table for one."""
    used = 0
    for low in range(0, planes.values.size, _GAPS):
        found = differences[2 * low : 2 * (low + _GAPS)]
        pairs = planes.values[low : low + _GAPS].astype("<u2")
        pairs |= pairs << 4
        pairs &= 0x0F0F
        codes = pairs.view(np.uint8)[: found.size]
        escapes = np.flatnonzero(codes == ESCAPE) if planes.escaped.size else codes[:0]
        codes += 1
        signs = codes & 1
        codes >>= 1
        codes ^= np.negative(signs, signs)
        np.copyto(found, codes.view(np.int8), casting="unsafe")  # modulo 2^bits
        found[escapes] = planes.escaped[used : used + escapes.size]
        used += escapes.size


def add(words: Words, positions: Index, differences: Words, shift: int, start: int) -> int:
    """words[positions + shift] += differences; the digest's gain, if the address of position 0 is `start`."""
    found, most = 0, min(_CHUNK, positions.size)
    target, shift = (words[shift:], 0) if shift > 0 else (words, shift)
    terms, room = Terms(most), np.empty(most, np.int64)
    before, after = np.empty((2, most), words.dtype)
    for low in range(0, positions.size, _CHUNK):
        here = positions[low : low + _CHUNK]
        places = np.add(here, shift, room[: here.size]) if shift else here
        old, new = before[: here.size], after[: here.size]
        target.take(places, out=old, mode="clip")  # any other mode makes a copy
        np.add(old, differences[low : low + _CHUNK], new)  # modulo 2^bits, as unsigned numpy words wrap
        target[places] = new
        found += terms.gain(here, old, new, start)
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
