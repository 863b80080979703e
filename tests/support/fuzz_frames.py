"""Frames under fuzz: damage that keeps the seal good, and planes that are taken apart, changed and packed again.

A frame that is accepted is added to words with a guard on both sides. Nothing outside may change, the digest's gain
must be what the words really went through, and where the digest is that of a published version the words must be its.
"""

import random
from collections.abc import Sequence

import numpy as np
import zstandard

from tests.support.fuzz_mutate import bend_bytes
from tests.support.fuzz_target import Target
from tests.support.weights import changed, random_words
from weightsync.codec import HEAD_BYTES, HEADER, Encoder, Frame, FrameHeader, open_frame, seal
from weightsync.digest import MASK, digest_of_bucket
from weightsync.errors import CorruptDelta
from weightsync.layout import WORD_DTYPE, AddressTable, Bucket, Segment, Words

_WORDS, _CUT, _FRAME, _GUARD = 600, 200, FrameHeader(layout=7, base=3, target=4, bucket=11), 512
_SIZES = {"words": 10, "changed": 11, "gaps": 12, "escaped": 13, "stored": 14, "gain": 17, "after": 18}
"""Where HEADER has what damage on purpose changes; three stored sizes follow one another."""

_HOSTILE = (0, 1, 2, 254, 255, 256, _WORDS - 1, _WORDS, _WORDS + 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 64) - 1)


class Frames:
    """One word width: a base, what was published on it, and frames between them."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.old = random_words(np.random.default_rng(width), _WORDS, width)
        self.bucket = Bucket(_FRAME.bucket, 0, width, (Segment("a", 0, _CUT), Segment("b", 0, _WORDS - _CUT)))
        step = 2 if width == 4 else 1
        self.table = AddressTable(np.array([_CUT, _WORDS], np.int64), np.array([0, (1 << 20) - _CUT * step], np.int64))
        self.before = digest_of_bucket(self.old, self.table)
        self.published: dict[int, Words] = {}

    def valid(self, draw: random.Random) -> bytes:
        """A frame of a new version on the base."""
        numbers = np.random.default_rng(draw.getrandbits(32))
        new = changed(self.old, numbers, draw.choice((0.01, 0.1, 1.0)), small=draw.random() < 0.5)
        encoded = Encoder().delta(self.old, new, _FRAME, self.table, self.before)
        if encoded is None:
            return self.valid(draw)
        self.published[encoded.digest_after] = new
        return encoded.frame

    def damage(self, blob: bytes, draw: random.Random, others: Sequence[bytes]) -> bytes:
        """Bytes bent, header fields replaced, or planes changed inside their compression; sealed again."""
        kind = draw.random()
        if kind < 0.4:
            bad = bend_bytes(blob, draw, others)
        elif kind < 0.6:
            fields = list(HEADER.unpack_from(blob))
            at = draw.choice((*range(5, 10), *_SIZES.values(), 15, 16))
            fields[at] = draw.choice((*_HOSTILE, fields[at] ^ 1, fields[at] + 1)) & _most(at)
            bad = HEADER.pack(*fields) + blob[HEADER.size :]
        else:
            bad = self._with_other_planes(blob, draw)
        if len(bad) < HEAD_BYTES:
            return bad
        return bad[: HEADER.size] + seal(bad[: HEADER.size], [bad[HEAD_BYTES:]], None) + bad[HEAD_BYTES:]

    def decode(self, blob: bytes) -> tuple[Frame, Words, int]:
        """What a reader does: check, add; (frame, guarded words, gain)."""
        frame = open_frame(blob, bucket=self.bucket, header=_FRAME)
        guarded = np.full(_WORDS + 2 * _GUARD, 0xA5, WORD_DTYPE[self.width])
        target = guarded[_GUARD:-_GUARD]
        target[:] = self.old
        return frame, guarded, frame.apply(target, self.table)

    def check(self, found: tuple[Frame, Words, int]) -> None:
        """Nothing outside was written, and wrong words are never taken for a published version."""
        frame, guarded, gain = found
        assert (guarded[:_GUARD] == 0xA5).all(), "a write before the words"
        assert (guarded[-_GUARD:] == 0xA5).all(), "a write behind the words"
        words = guarded[_GUARD:-_GUARD]
        after = digest_of_bucket(words, self.table)
        if frame.planes is not None:  # of a dense frame the engine measures the words itself
            assert after == (self.before + gain) & MASK, "the gain is not what the words went through"
        if after in self.published:
            assert np.array_equal(words, self.published[after]), "wrong words have a published digest"

    def _with_other_planes(self, blob: bytes, draw: random.Random) -> bytes:
        fields = list(HEADER.unpack_from(blob))
        flags, stored, at, planes = fields[4], fields[14:17], HEAD_BYTES, []
        for i, size in enumerate(stored):
            plane = blob[at : at + size]
            planes.append(zstandard.ZstdDecompressor().decompress(plane) if flags >> i & 1 else plane)
            at += size
        which = draw.randrange(2 if planes[1] else 1)
        plane = bytearray(planes[which])
        for _ in range(draw.choice((1, 1, 2, 8))):
            place = draw.randrange(len(plane))
            plane[place] = draw.choice((0, 1, 15, 0xF0, 254, 255, draw.randrange(256)))
        if draw.random() < 0.3:
            del plane[draw.randrange(len(plane)) :]
        planes[which] = bytes(plane)
        if fields[2] == 0 and draw.random() < 0.7:  # sparse: make the counts fit, so that only the contents are wrong
            fields[11] = len(planes[0]) - planes[0].count(255)
            fields[12] = len(planes[0])
        for i, plane in enumerate(planes):
            if flags >> i & 1:
                planes[i] = zstandard.ZstdCompressor(level=1).compress(plane)
        fields[14:17] = map(len, planes)
        return HEADER.pack(*fields) + bytes(HEAD_BYTES - HEADER.size) + b"".join(planes)


def _most(field: int) -> int:
    """The largest value of a header field: bytes, 4 bytes, then 8."""
    return 0xFF if field < 5 else 0xFFFFFFFF if field in (8, 9) else (1 << 64) - 1


def _target(width: int) -> Target:
    frames = Frames(width)
    return Target((CorruptDelta,), frames.valid, frames.damage, frames.decode, frames.check)


FRAME_TARGETS: dict[str, Target] = {f"frame{8 * width}": _target(width) for width in (1, 2, 4)}
"""By name: weight frames of 8, 16 and 32-bit words."""
