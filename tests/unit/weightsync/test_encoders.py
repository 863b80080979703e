"""Several encoders at once: the same results in the same order, not further ahead than said, errors in their place."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.weights import changed, manifest_of, random_words
from weightsync.buckets import BucketPlan
from weightsync.codec import Encoder, FrameHeader
from weightsync.encoders import Encoders
from weightsync.shard import ShardWords, shards_of
from weightsync.snapshot import Snapshot
from weightsync.transport.base import Deadline, run_prefix
from weightsync.transport.directory import DirectoryTransport
from weightsync.uploader import Uploaded, Uploader

WORDS = 20_000


def _upload(folder: Path, threads: int) -> Uploaded:
    rng = np.random.default_rng(5)
    plan = BucketPlan.whole(manifest_of({"a": ("bfloat16", (WORDS,))}), 1024)
    words = random_words(rng, WORDS, 2)
    new = changed(words, rng, 0.05)
    new[2048:4096] = words[2048:4096]  # buckets without a change among the others
    snapshot = Snapshot.capture(plan, 0, 0, lambda bucket: words[bucket.segments[0].start : bucket.segments[0].end])
    uploader = Uploader(DirectoryTransport(folder, "run"), 0, None, "changes", threads)
    done = uploader.delta(
        snapshot,
        lambda bucket: new[bucket.segments[0].start : bucket.segments[0].end],
        f"{run_prefix('run')}1:0:aa:",
        FrameHeader(0, 0, 1, 0),
        Deadline(60, "the test"),
    )
    anchor = uploader.anchor(snapshot, f"{run_prefix('run')}1:0:bb:", 0, Deadline(60, "the test"))
    assert anchor.gain == snapshot.digest()
    assert [bucket for bucket, _ in anchor.parts] == [bucket.id for bucket in plan.buckets]
    return done


def test_more_threads_put_the_same_parts_in_the_same_order(tmp_path: Path) -> None:
    one, three = (_upload(tmp_path / str(threads), threads) for threads in (1, 3))
    assert one.unchanged == three.unchanged == [2, 3]
    assert one.parts == three.parts
    assert [blob for _, blob in one.frames] == [blob for _, blob in three.frames]
    assert (one.gain, one.num_changed) == (three.gain, three.num_changed)
    files = [sorted(path.name for path in (tmp_path / name).rglob("*") if path.is_file()) for name in ("1", "3")]
    assert files[0] == files[1] != []


def test_calls_run_at_once_each_with_an_encoder_of_its_own_and_not_far_ahead() -> None:
    together, used, taken = threading.Barrier(2), set(), 0

    def meet(encoder: Encoder) -> int:
        together.wait(30)  # broken, unless two calls are in here at once
        used.add(id(encoder))
        return 1

    def calls() -> Iterator[Callable[[Encoder], int]]:
        nonlocal taken
        for _ in range(8):
            taken += 1
            yield meet

    with closing(Encoders(threads=2).in_order(calls())) as results:
        assert next(results) == 1
        assert taken == 3
        assert sum(results) == 7
    assert len(used) == 2


def test_words_that_are_gathered_for_several_calls_lie_apart() -> None:
    tensors = {name: torch.full((200,), value, dtype=torch.uint8) for value, name in enumerate("abcdefgh")}
    plan = BucketPlan.whole(manifest_of(dict.fromkeys(tensors, ("uint8", (200,)))), 500)
    words = ShardWords(shards_of(tensors.items(), "bfloat16"), Encoders(threads=2).most_taken)
    gathered = [bucket for bucket in plan.buckets if len(bucket.segments) > 1]
    assert len(gathered) >= 3
    held = [words.of(bucket) for bucket in gathered[:3]]
    assert [set(one) for one in held] == [{ord(s.tensor) - ord("a") for s in b.segments} for b in gathered[:3]]


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_comes_in_its_place_and_the_encoders_serve_on(threads: int) -> None:
    encoders = Encoders(threads=threads)

    def fail(_: Encoder) -> int:
        raise OSError("the disk")

    with closing(encoders.in_order([lambda _: 1, fail, lambda _: 2])) as results:
        assert next(results) == 1
        with pytest.raises(OSError, match="the disk"):
            next(results)
    assert list(encoders.in_order([lambda _: 3] * 4)) == [3] * 4
