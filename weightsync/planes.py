"""Sparse differences of a bucket as planes: encode, decode, add; by numba's kernels or by numpy's."""

from typing import Any

import numpy as np

from weightsync import diff, diff_numpy, plane_sums
from weightsync.diff_numpy import SKIP, Bytes, Planes
from weightsync.errors import CorruptDelta
from weightsync.layout import WORD_DTYPE, AddressTable, Index, Words, address_step

__all__ = [
    "Planes",
    "Room",
    "Scratch",
    "apply_planes",
    "check_planes",
    "count_changed",
    "decode_planes",
    "encode_planes",
    "frozen",
    "need",
]

_M64 = (1 << 64) - 1
_NO_INDEX = np.empty(0, np.int64)


class Scratch:
    """Buffers that one thread reuses from bucket to bucket; they grow to the largest fraction seen.

    Attributes:
        share: of its words that changed in the last bucket; the next one is likely to be alike.
    """

    def __init__(self, share: float = 0.0) -> None:
        self.share = share
        self._fraction = 0.04
        self._buffers: dict[int, tuple[Bytes, Bytes, Words]] = {}

    def buffers(self, num_words: int, width: int) -> tuple[Bytes, Bytes, Words]:
        """(gaps, codes, escaped) for a bucket of `num_words` at the fraction remembered."""
        changed = int(num_words * self._fraction) + diff.SLACK
        held = self._buffers.get(width)
        if held is None or held[1].size < changed or held[0].size < changed + num_words // SKIP + 64:
            escaped = changed if self._fraction >= 1 else changed // 4 + diff.SLACK
            held = (
                np.empty(changed + num_words // SKIP + 64, np.uint8),
                np.empty(changed, np.uint8),
                np.empty(escaped, WORD_DTYPE[width]),
            )
            self._buffers[width] = held
        return held

    def grow(self) -> None:
        """More words changed than the buffers hold: a second scan follows, and later buckets start larger."""
        self._fraction = min(1.0, self._fraction * 3)
        self._buffers.clear()


def encode_planes(old: Words, new: Words, table: AddressTable, scratch: Scratch) -> Planes:
    """The difference new - old of a bucket, as planes that are valid until `scratch` is used again.

    Args:
        old: [n] unsigned words, contiguous.
        new: [n] words of the same dtype.
        table: addresses of the bucket's segments; the last end is n.
        scratch: of the calling thread.
    """
    if not diff.HAVE_NUMBA:
        return diff_numpy.encode_planes(old, new, table)
    step, encode = address_step(new.dtype.itemsize), diff.encoder(new.size, scratch.share)
    while True:
        gaps, codes, escaped = scratch.buffers(new.size, new.dtype.itemsize)
        num_gaps, changed, num_escaped, gain = encode(
            frozen(old), frozen(new), gaps, codes, escaped, table.ends, table.bases, step
        )
        if num_gaps >= 0:
            break
        scratch.grow()
    scratch.share = changed / max(1, new.size)
    values = np.empty((changed + 1) >> 1, np.uint8)
    diff.pack(codes[:changed], values)
    return Planes(gaps[:num_gaps], values, escaped[:num_escaped], int(changed), int(gain) & _M64)


def count_changed(old: Words, new: Words) -> int:
    """How many words differ, [n] each."""
    if not diff.HAVE_NUMBA:
        return int(np.count_nonzero(old != new))
    return int(diff.count_changed(frozen(old), frozen(new)))


class Room:
    """Memory for decoded planes, kept from bucket to bucket: the system clears every page that it gives out anew."""

    def __init__(self) -> None:
        self._positions = np.empty(0, np.int64)
        self._differences: dict[int, Words] = {}

    def of(self, count: int, dtype: np.dtype[np.unsignedinteger]) -> tuple[Index, Words]:
        """[count] positions and differences, valid until the next call."""
        if self._positions.size < count:
            self._positions = np.empty(count + count // 4, np.int64)
        held = self._differences.get(dtype.itemsize)
        if held is None or held.size < count:
            held = self._differences[dtype.itemsize] = np.empty(count + count // 4, dtype)
        return self._positions[:count], held[:count]


def decode_planes(planes: Planes, dtype: np.dtype[np.unsignedinteger], room: Room | None = None) -> tuple[Index, Words]:
    """(positions, differences) of planes that passed `check_planes`; positions rise. In `room` if there is one."""
    positions, differences = (room or Room()).of(planes.num_changed, dtype)
    if diff.HAVE_NUMBA:
        diff.decode(frozen(planes.gaps), frozen(planes.values), frozen(planes.escaped), positions, differences)
    else:
        diff_numpy.decode(planes, positions, differences)
    return positions, differences


def apply_planes(target: Words, planes: Planes, table: AddressTable | None) -> int:
    """Add planes that passed `check_planes` to `target`, in place.

    Returns:
        The digest's gain from the words actually read to those written, modulo 2^64; 0 without a table.
    """
    if not diff.HAVE_NUMBA:
        return diff_numpy.apply_planes(target, planes, table)
    ends, bases = (_NO_INDEX, _NO_INDEX) if table is None else (table.ends, table.bases)
    step = address_step(target.dtype.itemsize)
    gain = diff.apply(target, frozen(planes.gaps), frozen(planes.values), frozen(planes.escaped), ends, bases, step)
    return int(gain) & _M64


def frozen(array: Any) -> Any:
    """A read-only, aligned view, so that one compiled kernel serves mapped files, bytes and arrays (hence Any)."""
    flags = array.flags
    view = array.view() if flags.c_contiguous and flags.aligned else np.require(array, requirements=["A", "C"]).view()
    view.flags.writeable = False
    return view


def check_planes(planes: Planes, num_words: int, where: str) -> None:
    """Every condition that decoding and adding rely on, so that neither needs a bounds check.

    Raises:
        CorruptDelta: names the first that does not hold.
    """
    gaps, values, changed = planes.gaps, planes.values, planes.num_changed
    if diff.HAVE_NUMBA:
        skips, total, escapes = plane_sums.sums(frozen(gaps), frozen(values))
    else:
        skips, total, escapes = diff_numpy.sums(gaps, values)
    found = gaps.size - int(skips)
    need(found == changed, where, "changed words in the gap plane", found, changed)
    need(values.size == (changed + 1) >> 1, where, "bytes of the value plane", values.size, (changed + 1) >> 1)
    last = int(total) + changed
    need(last <= num_words, where, "position of the last changed word", last - 1, f"below {num_words}")
    if changed & 1:
        need(int(values[-1]) >> 4 == 0, where, "padding nibble", int(values[-1]) >> 4, 0)
    need(int(escapes) == planes.escaped.size, where, "escapes in the value plane", int(escapes), planes.escaped.size)


def need(holds: bool, where: str, field: str, found: object, expected: object) -> None:
    """Refuse unless `holds`. Raises CorruptDelta, which says where, which field, what was found and expected."""
    if not holds:
        raise CorruptDelta(
            f"{where}: {field} is {found}, expected {expected}. The part is refused, nothing was written."
        )
