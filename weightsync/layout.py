"""Where words live: tensors in a global address space, segments of tensors, buckets of segments.

Pure data, stdlib and numpy only: the trainer, the host and the loader inside the server all read it.

Addresses count half words of 16 bits, so that a 4-byte word takes two and never meets its neighbour's digest term. A
1-byte word takes one address, an 8-byte element is two 4-byte words.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ITEMSIZE: Mapping[str, int] = {
    **dict.fromkeys(("bool", "uint8", "int8", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("bfloat16", "float16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64"), 8),
}
"""Bytes of one element, for every dtype that the format carries."""

MAX_BUCKET_WORDS = (1 << 31) - 1
MAX_ADDRESS = 1 << 48

Words = npt.NDArray[np.unsignedinteger]
Index = npt.NDArray[np.int64]

WORD_DTYPE: Mapping[int, np.dtype[np.unsignedinteger]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
}


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of the checkpoint: `offset` is its first address."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def width(self) -> int:
        """Bytes of one word: 1, 2 or 4."""
        return min(ITEMSIZE[self.dtype], 4)

    @property
    def num_words(self) -> int:
        return math.prod(self.shape) * (2 if ITEMSIZE[self.dtype] == 8 else 1)

    @property
    def num_addresses(self) -> int:
        return self.num_words * address_step(self.width)


@dataclass(frozen=True)
class Segment:
    """A contiguous run of the flat tensor, in its words."""

    tensor: str
    start: int
    words: int

    @property
    def end(self) -> int:
        return self.start + self.words


@dataclass(frozen=True)
class Bucket:
    """What one frame carries: segments of one word width, end to end, owned by one trainer rank."""

    id: int
    rank: int
    width: int
    segments: tuple[Segment, ...]

    @property
    def num_words(self) -> int:
        return sum(segment.words for segment in self.segments)

    @property
    def num_bytes(self) -> int:
        return self.num_words * self.width


@dataclass(frozen=True)
class AddressTable:
    """Bucket position -> address: `bases[s] + position * step` for the first s with `position < ends[s]`."""

    ends: Index
    bases: Index


def address_step(width: int) -> int:
    """Addresses that one word of `width` bytes takes."""
    return 2 if width == 4 else 1


def address_table(segments: Sequence[Segment], specs: Mapping[str, TensorSpec]) -> AddressTable:
    """The table of a bucket's segments, [S] int64 each."""
    ends = np.empty(len(segments), np.int64)
    bases = np.empty(len(segments), np.int64)
    at = 0
    for i, segment in enumerate(segments):
        spec = specs[segment.tensor]
        bases[i] = spec.offset + (segment.start - at) * address_step(spec.width)
        at += segment.words
        ends[i] = at
    return AddressTable(ends, bases)


def by_name(tensors: Iterable[TensorSpec]) -> dict[str, TensorSpec]:
    """Tensors by their name."""
    return {spec.name: spec for spec in tensors}
