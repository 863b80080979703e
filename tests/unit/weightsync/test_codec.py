"""Frames: exact round trips, the smallest form, merging, and hostile bytes with and without a valid seal."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.weights import changed, random_words
from weightsync.codec import DENSE, HEAD_BYTES, HEADER, Encoded, Encoder, Fold, Frame, FrameHeader, open_frame, seal
from weightsync.digest import MASK, digest, total
from weightsync.errors import CorruptDelta
from weightsync.layout import AddressTable, Bucket, Segment, Words
from weightsync.planes import Scratch

HEAD = FrameHeader(layout=7, base=3, target=4, bucket=11)


def bucket_of(num_words: int, width: int = 2) -> Bucket:
    """Two segments, the second far away."""
    cut = num_words // 3
    segments = (Segment("a", 0, cut), Segment("b", 0, num_words - cut)) if cut else (Segment("b", 0, num_words),)
    return Bucket(HEAD.bucket, 0, width, segments)


def table_of(bucket: Bucket) -> AddressTable:
    ends = np.cumsum([s.words for s in bucket.segments]).astype(np.int64)
    step = 2 if bucket.width == 4 else 1
    starts = np.array([0, 1 << 20][-len(ends) :])
    return AddressTable(ends, starts - (ends - [s.words for s in bucket.segments]) * step)


def digest_of(words: Words, bucket: Bucket) -> int:
    cut = bucket.num_words - bucket.segments[-1].words
    return total((digest(words[:cut], 0), digest(words[cut:], 1 << 20)))


def encode(old: Words, new: Words, header: FrameHeader = HEAD, key: bytes | None = None) -> Encoded:
    bucket = bucket_of(old.size, old.dtype.itemsize)
    encoded = Encoder(key).delta(old, new, header, table_of(bucket), digest_of(old, bucket))
    assert encoded is not None
    return encoded


def opened(frame: bytes, like: Words, header: FrameHeader = HEAD, key: bytes | None = None) -> Frame:
    return open_frame(frame, bucket=bucket_of(like.size, like.dtype.itemsize), header=header, key=key)


def pair(num_words: int, fraction: float, width: int = 2, seed: int = 1, *, small: bool = True) -> tuple[Words, Words]:
    rng = np.random.default_rng(seed)
    old = random_words(rng, num_words, width)
    return old, changed(old, rng, fraction, small=small)


@settings(max_examples=120, deadline=None)
@given(
    num_words=st.integers(1, 6000),
    fraction=st.floats(0, 1),
    width=st.sampled_from([1, 2, 4]),
    small=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_a_frame_turns_old_into_new_and_carries_both_digests(
    num_words: int, fraction: float, width: int, small: bool, seed: int
) -> None:
    old, new = pair(num_words, fraction, width, seed, small=small)
    bucket = bucket_of(num_words, width)
    before = digest_of(old, bucket)
    encoded = Encoder().delta(old, new, HEAD, table_of(bucket), before)
    if encoded is None:
        assert np.array_equal(old, new)
        return
    assert encoded.num_changed == int((old != new).sum())
    assert len(encoded.frame) <= HEAD_BYTES + new.nbytes
    frame, target = opened(encoded.frame, old), old.copy()
    gain = frame.apply(target, table_of(bucket))
    assert np.array_equal(target, new)
    assert (before + gain) & MASK == frame.digest_after == digest_of(new, bucket)


def test_an_unchanged_bucket_gives_no_frame() -> None:
    old, _ = pair(5000, 0.5)
    bucket = bucket_of(old.size)
    assert Encoder().delta(old, old.copy(), HEAD, table_of(bucket), 0) is None


def test_words_that_all_became_random_go_dense_and_small_steps_never_do() -> None:
    old, new = pair(50_000, 1.0, small=False)
    assert encode(old, new).dense
    assert len(encode(old, new).frame) == HEAD_BYTES + new.nbytes
    old, new = pair(50_000, 1.0)
    assert not encode(old, new).dense


def test_three_percent_changed_cost_about_a_byte_each() -> None:
    """The floor of such a pair is near 1.05 bytes per changed word; int32 index and value would take 6."""
    rng = np.random.default_rng(0)
    old = random_words(rng, 1 << 21, 2)
    new = old.copy()
    chosen = rng.random(old.size) < 0.03
    new[chosen] += rng.choice(np.array([1, 65535], np.uint16), int(chosen.sum()))
    encoded = encode(old, new)
    assert len(encoded.frame) / encoded.num_changed <= 1.10


def merge(frames: list[Frame]) -> Frame:
    fold = Fold(frames[0].bucket)
    for frame in frames:
        fold.add(frame)
    folded = fold.result(Scratch())
    assert folded is not None
    return folded


@pytest.mark.parametrize("kinds", ["sss", "sds", "dss", "ssd", "s", "d"])
def test_merged_frames_have_the_effect_of_all_in_order(kinds: str) -> None:
    rng = np.random.default_rng(2)
    versions = [random_words(rng, 20_001, 2)]
    frames = []
    for i, kind in enumerate(kinds):
        versions.append(changed(versions[-1], rng, 0.05 if kind == "s" else 1.0, small=kind == "s"))
        header = HEAD._replace(base=i, target=i + 1)
        encoded = encode(versions[i], versions[i + 1], header)
        assert encoded.dense == (kind == "d")
        frames.append(opened(encoded.frame, versions[0], header))
    merged = merge(frames)
    assert (merged.dense is not None) == ("d" in kinds)
    start = versions[0].copy() if "d" not in kinds else np.zeros_like(versions[0])
    merged.apply(start, None)
    assert np.array_equal(start, versions[-1])
    bucket = bucket_of(20_001)
    assert (digest_of(versions[0], bucket) + merged.digest_delta) & MASK == digest_of(versions[-1], bucket)
    assert merged.digest_after == digest_of(versions[-1], bucket)


def test_changes_that_undo_each_other_merge_to_nothing() -> None:
    old, new = pair(5000, 0.2)
    there, back = encode(old, new), encode(new, old, HEAD._replace(base=4, target=5))
    frames = [opened(there.frame, old), opened(back.frame, old, HEAD._replace(base=4, target=5))]
    assert merge(frames).num_changed == 0


def test_a_part_of_an_anchor_needs_no_base_and_a_sparse_frame_may_not_pose_as_one() -> None:
    old, new = pair(1000, 0.1)
    header = HEAD._replace(base=9, target=9)
    encoded = Encoder().anchor(new, header, 5)
    frame = opened(encoded.frame, new, header)
    assert frame.dense is not None
    assert np.array_equal(frame.dense, new)
    assert frame.digest_after == 5
    with pytest.raises(CorruptDelta, match="base is 9, expected below the target 9"):
        opened(encode(old, new, header).frame, old, header)


@pytest.mark.parametrize(
    ("offset", "field"),
    [(0, "magic"), (4, "format version"), (5, "kind"), (6, "word width"), (7, "flags"), (8, "layout"), (16, "layout"),
     (24, "layout"), (32, "layout"), (36, "reserved"), (40, "words"), (55, "changed words"), (72, "frame bytes"),
     (96, "seal"), (104, "seal"), (112, "seal"), (200, "seal")],
)  # fmt: skip
def test_a_flipped_byte_is_refused_and_the_message_names_the_field(offset: int, field: str) -> None:
    old, new = pair(5000, 0.05)
    frame = bytearray(encode(old, new).frame)
    frame[offset] ^= 0x40
    with pytest.raises(CorruptDelta, match=f"bucket 11 of version 0.4: {field}"):
        opened(bytes(frame), old)


def test_another_base_or_target_than_the_record_says_is_refused() -> None:
    old, new = pair(500, 0.1)
    frame = encode(old, new).frame
    for other in (HEAD._replace(base=2), HEAD._replace(target=5), HEAD._replace(layout=8), HEAD._replace(bucket=1)):
        with pytest.raises(CorruptDelta, match="layout, base, target, bucket"):
            open_frame(frame, bucket=bucket_of(500), header=other)


def test_a_frame_sealed_with_another_key_or_none_is_refused() -> None:
    old, new = pair(500, 0.1)
    key, other = bytes(range(32)), bytes(32)
    frame = encode(old, new, key=key).frame
    assert opened(frame, old, key=key).num_changed > 0
    for wrong in (other, None):
        with pytest.raises(CorruptDelta, match="seal"):
            opened(frame, old, key=wrong)


def hostile(frame: bytes, rng: random.Random, *, fix_seal: bool) -> bytes:
    """A frame with one to three bits flipped, half of the time in the header, sometimes cut short."""
    bad = bytearray(frame)
    for _ in range(rng.randint(1, 3)):
        bad[rng.randrange(len(bad) if rng.random() < 0.5 else HEAD_BYTES)] ^= 1 << rng.randrange(8)
    if rng.random() < 0.2:
        del bad[rng.randrange(len(bad)) :]
    if fix_seal and len(bad) >= HEAD_BYTES:
        bad[HEADER.size : HEAD_BYTES] = seal(bytes(bad[: HEADER.size]), [bytes(bad[HEAD_BYTES:])], None)
    return bytes(bad)


@pytest.mark.parametrize("changed_fraction", [0.001, 0.05, 1.0])
def test_a_damaged_frame_is_never_accepted(changed_fraction: float) -> None:
    old, new = pair(4000, changed_fraction)
    frame, rng = encode(old, new).frame, random.Random(0)
    for _ in range(700):
        bad = hostile(frame, rng, fix_seal=False)
        if bad != frame:
            with pytest.raises(CorruptDelta):
                opened(bad, old)


@pytest.mark.parametrize(("fraction", "small"), [(0.001, True), (0.05, True), (0.3, False), (1.0, False)])
def test_a_damaged_frame_with_its_seal_made_good_never_writes_outside_or_passes_the_digest(
    fraction: float, small: bool
) -> None:
    old, new = pair(4000, fraction, small=small)
    bucket = bucket_of(old.size)
    before, frame, rng = digest_of(old, bucket), encode(old, new).frame, random.Random(1)
    decoded = 0
    for _ in range(700):
        bad = hostile(frame, rng, fix_seal=True)
        try:
            accepted = opened(bad, old)
        except CorruptDelta:
            continue
        decoded += 1
        guarded = np.full(old.size + 2048, 0xABCD, np.uint16)
        target = guarded[1024:-1024]
        target[:] = old
        accepted.apply(target, table_of(bucket))
        assert (guarded[:1024] == 0xABCD).all()
        assert (guarded[-1024:] == 0xABCD).all()
        if not np.array_equal(target, new):
            # What the receiver compares: the digest it went through against the one that was committed.
            assert digest_of(target, bucket) != (before + encode(old, new).digest_delta) & MASK
    assert decoded > 0


def test_a_hostile_zstd_plane_cannot_ask_for_more_memory_than_the_bucket() -> None:
    old, new = pair(200_000, 0.02)
    frame = bytearray(encode(old, new).frame)
    assert frame[7] & 1, "the gap plane is compressed"
    at = HEAD_BYTES
    assert frame[at : at + 4] == b"\x28\xb5\x2f\xfd"
    frame[at + 4] = 0xA0 | 0x40  # an 8-byte content size of anything, single segment
    frame[at + 5 : at + 13] = (1 << 40).to_bytes(8, "little")
    frame[HEADER.size : HEAD_BYTES] = seal(bytes(frame[: HEADER.size]), [bytes(frame[HEAD_BYTES:])], None)
    with pytest.raises(CorruptDelta, match="zstd size of the gap plane"):
        opened(bytes(frame), old)


def test_the_header_is_the_documented_one() -> None:
    old, new = pair(1000, 1.0, small=False)
    encoded = encode(old, new)
    head = encoded.frame[:HEAD_BYTES]
    assert HEADER.size == 112
    assert head[:8] == b"AWSD\x01" + bytes((DENSE, 2, 0))
    assert [int.from_bytes(head[i : i + 8], "little") for i in (8, 16, 24, 40)] == [7, 3, 4, 1000]
    assert int.from_bytes(head[32:36], "little") == 11
    assert int.from_bytes(head[104:112], "little") == digest_of(new, bucket_of(1000))
