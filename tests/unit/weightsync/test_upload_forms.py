"""A rank's parts hold changes or whole words: both make the same words, and the choice follows what was measured."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.weights import changed, manifest_of, random_words
from weightsync.buckets import BucketPlan
from weightsync.codec import Encoder, FrameHeader, open_frame
from weightsync.digest import MASK, digest
from weightsync.layout import Bucket, Words
from weightsync.link_rates import LinkRates
from weightsync.snapshot import Snapshot
from weightsync.transport.base import Deadline, run_prefix
from weightsync.transport.directory import DirectoryTransport
from weightsync.uploader import Uploaded, Uploader

WORDS = 1 << 23
HEAD = FrameHeader(0, 0, 1, 0)


class Faster(LinkRates):
    """Rates that say what the test wants."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def faster(self) -> str:  # type: ignore[override]  # one of the two
        return self.form


@pytest.mark.parametrize("width", [1, 2, 4])
def test_a_whole_frame_turns_old_into_new_and_counts_what_changed(width: int) -> None:
    rng = np.random.default_rng(width)
    old = random_words(rng, 5000, width)
    new = changed(old, rng, 0.1)
    plan = BucketPlan.whole(manifest_of({"a": ({1: "uint8", 2: "bfloat16", 4: "int32"}[width], (5000,))}), 10_000)
    (bucket,), before = plan.buckets, digest(old, 0)
    encoded = Encoder().whole(old, new, HEAD, plan.table(bucket), before)
    assert encoded is not None
    assert encoded.dense
    assert encoded.num_changed == int((old != new).sum())
    assert encoded.digest_after == digest(new, 0) == (before + encoded.digest_delta) & MASK
    target = old.copy()
    assert open_frame(encoded.frame, bucket=bucket, header=HEAD).apply(target, None) == encoded.digest_delta
    assert np.array_equal(target, new)
    assert Encoder().whole(old, old, HEAD, plan.table(bucket), before) is None


@pytest.mark.parametrize(
    ("form", "mode", "num_dense"), [("whole", "auto", 3), ("whole", "changes", 0), ("changes", "auto", 0)]
)
def test_the_faster_form_is_put_and_one_bucket_keeps_measuring_changes(
    form: str, mode: str, num_dense: int, tmp_path: Path
) -> None:
    plan = BucketPlan.whole(manifest_of({"a": ("bfloat16", (WORDS,))}), WORDS // 4)
    rng = np.random.default_rng(0)
    words = random_words(rng, WORDS, 2)
    new = words.copy()
    new[::100] += 1
    snapshot = Snapshot.capture(plan, 0, 0, lambda bucket: _of(words, bucket))
    uploader = Uploader(DirectoryTransport(tmp_path, "run"), 0, None, "auto" if mode == "auto" else "changes")
    uploader.rates = Faster(form)
    done = uploader.delta(
        snapshot, lambda bucket: _of(new, bucket), f"{run_prefix('run')}1:0:aa:", HEAD, Deadline(60, "the test")
    )
    assert _num_dense(done) == num_dense
    assert done.num_changed == len(new[::100])
    snapshot.advance(done.frames, HEAD, None)
    assert all(np.array_equal(snapshot.words[bucket.id], _of(new, bucket)) for bucket in plan.buckets)
    assert uploader.rates.seconds_a_byte("changes") is not None


def _of(words: Words, bucket: Bucket) -> Words:
    (segment,) = bucket.segments
    return words[segment.start : segment.end]


def _num_dense(done: Uploaded) -> int:
    return sum(blob[5] for _, blob in done.frames)


def test_buckets_that_never_change_are_compared_once_and_then_no_longer_read(tmp_path: Path) -> None:
    manifest = manifest_of({"w": ("bfloat16", (500, 8))})
    plan = BucketPlan.whole(manifest, 1000)
    words = random_words(np.random.default_rng(3), 4000, 2)
    stale = words.copy()
    stale[:8] += 1  # head has other words of the first bucket than the trainer
    snapshot = Snapshot.capture(plan, 0, 0, lambda bucket: _of(stale, bucket))
    uploader = Uploader(DirectoryTransport(tmp_path, "run"), 0, None)
    frozen, read = {bucket.id for bucket in plan.buckets[:3]}, []

    def words_of(bucket: Bucket) -> Words:
        read.append(bucket.id)
        return _of(words, bucket)

    rounds = []
    for number in range(3):
        header = HEAD._replace(base=number, target=number + 1)
        place, deadline = f"{run_prefix('run')}1:{number}:aa:", Deadline(60, "the test")
        done = uploader.delta(snapshot, words_of, place, header, deadline, frozen)
        snapshot.advance(done.frames, header, None)
        rounds.append((sorted(done.unchanged), list(read), [bucket.id for bucket, _ in done.frames]))
        read.clear()
    assert rounds == [([1, 2, 3], [0, 1, 2, 3], [0]), ([0, 1, 2, 3], [0, 3], []), ([0, 1, 2, 3], [3], [])]
