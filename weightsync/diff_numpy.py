"""The diff kernels in plain numpy: the slow, obvious version, used where numba is not installed.

`diff` chooses between the two; a test holds them to the same bits. No I/O, no clock, no state.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weightsync.layout import AddressTable, Index, Words, address_step

Bytes = npt.NDArray[np.uint8]

ESCAPE = 15
"""Value code of a difference that stands in the escape plane."""

SKIP = 255
"""Gap byte that skips 255 words of which none changed."""

_CHUNK = 1 << 16
_M64 = (1 << 64) - 1


_PAIRS = np.arange(256)[:, None] >> np.array([0, 4]) & 15
_DIFFERENCES = ((_PAIRS + 1) >> 1) ^ -((_PAIRS + 1) & 1)
_ESCAPES = _PAIRS == ESCAPE
"""[256, 2] of a byte of the value plane: its codes, the differences that they say, and which are escapes."""


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


def mix64(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """splitmix64's finaliser, a bijection of 64-bit words."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def digest_at(addresses: Index, words: Words) -> int:
    """Sum over i of mix64(addresses[i] << 16 | words[i]) mod 2^64; a 4-byte word counts as two half words."""
    total = 0
    for lo in range(0, words.size, _CHUNK):
        word = words[lo : lo + _CHUNK].astype(np.uint64)
        address = addresses[lo : lo + _CHUNK].astype(np.uint64) << np.uint64(16)
        if words.dtype.itemsize == 4:
            low = mix64(address + (word & np.uint64(0xFFFF)))
            terms = low + mix64(address + np.uint64(1 << 16) + (word >> np.uint64(16)))
        else:
            terms = mix64(address + word)
        total += int(terms.sum(dtype=np.uint64))
    return total & _M64


def digest_words(words: Words, start: int) -> int:
    """The digest of a contiguous run whose first word has address `start`."""
    step = address_step(words.dtype.itemsize)
    total = 0
    for lo in range(0, words.size, _CHUNK):
        piece = words[lo : lo + _CHUNK]
        total += digest_at(start + (lo + np.arange(piece.size, dtype=np.int64)) * step, piece)
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


def decode_planes(planes: Planes, dtype: np.dtype[np.unsignedinteger]) -> tuple[Index, Words]:
    """(positions, differences) of checked planes, [num_changed] each; positions rise."""
    changes = planes.gaps != SKIP
    positions = np.add(planes.gaps, changes, dtype=np.int64)
    np.cumsum(positions, out=positions)
    if planes.num_changed < positions.size:
        positions = positions[changes]
    positions -= 1
    # Two codes at a time, by tables of all their pairs.
    pair = np.dtype(f"u{2 * dtype.itemsize}")
    count = planes.num_changed
    difference: Words = _DIFFERENCES.astype(dtype).view(pair)[:, 0][planes.values].view(dtype)[:count]
    if planes.escaped.size:
        escapes = _ESCAPES.view(np.uint16)[:, 0][planes.values].view(np.bool_)[:count]
        difference[np.flatnonzero(escapes)] = planes.escaped
    return positions, difference


def apply_planes(target: Words, planes: Planes, table: AddressTable | None) -> int:
    """Add checked planes to `target` in place; the digest's gain, or 0 without a table."""
    positions, difference = decode_planes(planes, target.dtype)
    before = target[positions]
    after = before + difference
    target[positions] = after
    if table is None:
        return 0
    addresses = addresses_of(positions, table, target.dtype.itemsize)
    return (digest_at(addresses, after) - digest_at(addresses, before)) & _M64


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
