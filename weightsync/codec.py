"""The AWSD frame: one bucket of one version as bytes, and every check that a reader makes before it trusts them.

128 bytes of little-endian header, then the planes (or, dense, the raw words) without padding:

  0 magic "AWSD"     4 format = 1      5 kind: 0 sparse, 1 dense       6 word width     7 flags: bit i = plane i is zstd
  8 layout id       16 base version   24 target version               32 bucket        36 reserved, 0
 40 words n         48 changed words  56 bytes of the gap plane G     64 escaped words
 72, 80, 88 stored bytes of G, V, X   96 digest's gain               104 bucket digest after
112 seal: 16 bytes of blake3 over header[0:112] and body, keyed when a secret is shared

A delta's target is above its base. A part of an anchor is dense and has base = target: it needs no base.
"""

import hmac
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import blake3
import numpy as np
import zstandard

from weightsync import huffman
from weightsync.diff_numpy import SKIP
from weightsync.digest import MASK, digest_of_bucket, total
from weightsync.layout import WORD_DTYPE, AddressTable, Bucket, Words
from weightsync.planes import Planes, Scratch, apply_planes, check_planes, count_changed, encode_planes, need
from weightsync.unpacking import unpacked
from weightsync.versions import label

HEADER = struct.Struct("<4sBBBBQQQIIQQQQQQQQQ")
SEAL_BYTES = 16
HEAD_BYTES = HEADER.size + SEAL_BYTES
MAGIC = b"AWSD"
FORMAT = 1
SPARSE, DENSE = 0, 1

_MIN_ZSTD_BYTES = 64
_ONE_BYTE_RULES = 5  # a plane that literals shrink so far is nearly one byte: there zstd's repeats may be worth more
_PLANE_NAMES = ("gap plane", "value plane", "escape plane")


class FrameHeader(NamedTuple):
    """What a frame says about itself before its bytes are known."""

    layout: int
    base: int
    target: int
    bucket: int

    @property
    def anchor(self) -> bool:
        """Does the frame need no base?"""
        return self.base == self.target


@dataclass(frozen=True)
class Encoded:
    """A frame ready to be sent."""

    frame: bytes
    dense: bool
    num_changed: int
    digest_delta: int
    digest_after: int


class Encoder:
    """Encodes buckets one after the other; one per thread."""

    def __init__(self, key: bytes | None = None) -> None:
        """`key`: 32 bytes shared with the readers, which makes the seal an authenticator."""
        self._key = key
        self._scratch = Scratch()
        # Level 1 with long matches only: the gain is its Huffman stage, higher levels find false matches.
        parameters = zstandard.ZstdCompressionParameters.from_level(
            1, min_match=7, hash_log=6, window_log=17, write_content_size=True
        )
        self._zstd = zstandard.ZstdCompressor(compression_params=parameters)

    def delta(
        self, old: Words, new: Words, header: FrameHeader, table: AddressTable, digest_before: int
    ) -> Encoded | None:
        """The smallest frame that turns `old` into `new`: sparse, or dense when that is not larger.

        Returns:
            None if no word changed: an unchanged bucket costs nothing.
        """
        planes = encode_planes(old, new, table, self._scratch)
        if planes.num_changed == 0:
            return None
        escaped = planes.escaped.astype(WORD_DTYPE[new.dtype.itemsize], copy=False)
        body, flags = [planes.gaps.tobytes(), planes.values.tobytes(), escaped.tobytes()], 0
        for i, plane in enumerate(body):
            if len(plane) >= _MIN_ZSTD_BYTES and len(packed := self._packed(plane)) < len(plane):
                body[i], flags = packed, flags | 1 << i
        after = (digest_before + planes.digest_delta) & MASK
        if sum(map(len, body)) >= new.nbytes:
            return self._dense(new, header, planes.num_changed, planes.digest_delta, after)
        counts = (planes.num_changed, planes.gaps.size, planes.escaped.size)
        frame = self._frame(SPARSE, new, flags, header, counts, body, planes.digest_delta, after)
        return Encoded(frame, False, planes.num_changed, planes.digest_delta, after)

    def whole(
        self, old: Words, new: Words, header: FrameHeader, table: AddressTable, digest_before: int
    ) -> Encoded | None:
        """The dense frame that turns `old` into `new`, whatever its size; None if no word changed."""
        if (changed := count_changed(old, new)) == 0:
            return None
        after = digest_of_bucket(new, table)
        return self._dense(new, header, changed, (after - digest_before) & MASK, after)

    def anchor(self, words: Words, header: FrameHeader, digest_after: int) -> Encoded:
        """A dense frame that needs no base; `header.base` equals `header.target`."""
        return self._dense(words, header, words.size, 0, digest_after)

    def dense(self, words: Words, header: FrameHeader, digest_delta: int, digest_after: int) -> Encoded:
        """A dense frame on a base; which of the words differ from it is not known, so all count as changed."""
        return self._dense(words, header, words.size, digest_delta, digest_after)

    def _packed(self, plane: bytes) -> bytes:
        """A zstd frame of the plane: by zstd itself, or of literals only where those are fewer bytes."""
        array = np.frombuffer(plane, np.uint8)
        literals = huffman.compress(array) if huffman.has_runs(array) else None
        if literals is not None and len(literals) * _ONE_BYTE_RULES > len(plane):
            return literals
        return min(self._zstd.compress(plane), literals or plane, key=len)

    def _dense(self, words: Words, header: FrameHeader, changed: int, delta: int, after: int) -> Encoded:
        raw = words.astype(WORD_DTYPE[words.dtype.itemsize], copy=False).tobytes()
        frame = self._frame(DENSE, words, 0, header, (changed, 0, 0), [raw, b"", b""], delta, after)
        return Encoded(frame, True, changed, delta, after)

    def _frame(
        self,
        kind: int,
        words: Words,
        flags: int,
        header: FrameHeader,
        counts: tuple[int, int, int],
        body: list[bytes],
        delta: int,
        after: int,
    ) -> bytes:
        head = HEADER.pack(
            *(MAGIC, FORMAT, kind, words.dtype.itemsize, flags),
            *(header.layout, header.base, header.target, header.bucket, 0),
            *(words.size, *counts, *map(len, body), delta, after),
        )
        return b"".join((head, seal(head, body, self._key), *body))


def seal(header: bytes | memoryview, body: Sequence[bytes | memoryview], key: bytes | None) -> bytes:
    """16 bytes of blake3 over header and body: an integrity hash and, with a key, an authenticator."""
    hasher = blake3.blake3(header) if key is None else blake3.blake3(header, key=key)
    for piece in body:
        hasher.update(piece)
    return hasher.digest(SEAL_BYTES)


@dataclass(frozen=True)
class Frame:
    """A frame that passed every check. `planes` or `dense`, the other is None; both may look into the buffer."""

    header: FrameHeader
    bucket: Bucket
    planes: Planes | None
    dense: Words | None
    num_changed: int
    digest_delta: int
    digest_after: int

    def apply(self, target: Words, table: AddressTable | None) -> int:
        """Add to (or, dense, overwrite) the bucket's words in place.

        Returns:
            The digest's gain: of a sparse frame from the words actually read, of a dense one as the header says.
        """
        if self.planes is not None:
            return apply_planes(target, self.planes, table)
        assert self.dense is not None
        target[:] = self.dense
        return self.digest_delta


def open_frame(buffer: bytes | memoryview, *, bucket: Bucket, header: FrameHeader, key: bytes | None = None) -> Frame:
    """Check a frame completely; no memory is given on its word alone, nothing of a destination is touched.

    Args:
        buffer: the bytes of one part.
        bucket: what the plan says this bucket is.
        header: what the record says the frame must be.
        key: 32 bytes if the publisher seals with one.

    Raises:
        CorruptDelta: names the field, what was found and what was expected.
    """
    view = memoryview(buffer)
    where = f"bucket {bucket.id} of version {label(header.target)}"
    need(len(view) >= HEAD_BYTES, where, "frame bytes", len(view), f"at least {HEAD_BYTES}")
    (magic, version, kind, width, flags, layout, base, target, bucket_id, reserved, n, changed, gap_bytes, num_escaped,
     *stored, delta, after) = HEADER.unpack_from(view)  # fmt: skip
    words = bucket.num_words
    need(magic == MAGIC, where, "magic", magic, MAGIC)
    need(version == FORMAT, where, "format version", version, f"{FORMAT}, which this build reads")
    need(kind in (SPARSE, DENSE), where, "kind", kind, "0 (sparse) or 1 (dense)")
    need(width == bucket.width, where, "word width", width, bucket.width)
    need(flags < 8 and (kind == SPARSE or flags == 0), where, "flags", flags, "below 8, and 0 when dense")
    need(FrameHeader(layout, base, target, bucket_id) == header, where, "layout, base, target, bucket",
          (layout, base, target, bucket_id), tuple(header))  # fmt: skip
    need(target > base or (kind == DENSE and target == base), where, "base", base, f"below the target {target}")
    need(reserved == 0, where, "reserved", reserved, 0)
    need(n == words, where, "words", n, words)
    need(changed <= n, where, "changed words", changed, f"at most {n}")
    need(len(view) == HEAD_BYTES + sum(stored), where, "frame bytes", len(view), HEAD_BYTES + sum(stored))
    body = view[HEAD_BYTES:]
    sealed = bytes(view[HEADER.size : HEAD_BYTES])
    need(hmac.compare_digest(seal(view[: HEADER.size], [body], key), sealed), where, "seal", sealed.hex(),
          "the blake3 of header and body, under the shared key if one is set")  # fmt: skip
    if kind == DENSE:
        sizes = (gap_bytes, num_escaped, *stored)
        need(sizes == (0, 0, n * width, 0, 0), where, "dense sizes", sizes, (0, 0, n * width, 0, 0))
        return Frame(header, bucket, None, np.frombuffer(body, WORD_DTYPE[width]), changed, delta, after)
    need(changed <= gap_bytes <= changed + n // SKIP, where, "gap bytes", gap_bytes,
          f"{changed} to {changed + n // SKIP}")  # fmt: skip
    need(num_escaped <= changed, where, "escaped words", num_escaped, f"at most {changed}")
    raw, at = [], 0
    for i, size in enumerate((gap_bytes, (changed + 1) >> 1, num_escaped * width)):
        raw.append(unpacked(body[at : at + stored[i]], bool(flags >> i & 1), size, where, _PLANE_NAMES[i]))
        at += stored[i]
    gaps, values = (np.frombuffer(plane, np.uint8) for plane in raw[:2])
    planes = Planes(gaps, values, np.frombuffer(raw[2], WORD_DTYPE[width]), changed, delta)
    check_planes(planes, n, where)
    return Frame(header, bucket, planes, None, changed, delta, after)


class Fold:
    """Makes one frame of many, of one bucket, each on the target of the one before.

    Differences add, so no base is needed: they are summed onto zeros and encoded against zeros. From a dense frame on,
    the result is dense. One bucket's words are held, however many frames are added.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._only: Frame | None = None
        self._words = np.empty(0, WORD_DTYPE[bucket.width])
        self._dense = False
        self._base = self._delta = self._after = 0
        self._last: FrameHeader | None = None

    def add(self, frame: Frame) -> None:
        """The next frame. It is held on to only while it is the only one."""
        if self._last is None:
            self._only, self._base = frame, frame.header.target if frame.header.anchor else frame.header.base
        else:
            if self._only is not None:
                self._words = np.zeros(self._bucket.num_words, self._words.dtype)
                self._put(self._only)
                self._only = None
            self._put(frame)
        self._last, self._after = frame.header, frame.digest_after
        self._delta = total((self._delta, frame.digest_delta))

    def result(self, scratch: Scratch) -> Frame | None:
        """One frame with the effect of all, None if there were none; its planes are valid until `scratch` is used
        again.
        """
        if self._only is not None or self._last is None:
            return self._only
        header, words, bucket = self._last._replace(base=self._base), self._words, self._bucket
        if self._dense:
            return Frame(header, bucket, None, words, bucket.num_words, self._delta, self._after)
        no_table = AddressTable(np.array([bucket.num_words], np.int64), np.zeros(1, np.int64))
        planes = encode_planes(np.zeros_like(words), words, no_table, scratch)._replace(digest_delta=self._delta)
        return Frame(header, bucket, planes, None, planes.num_changed, self._delta, self._after)

    def _put(self, frame: Frame) -> None:
        self._dense = self._dense or frame.dense is not None
        frame.apply(self._words, None)
