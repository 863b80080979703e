"""Words that were captured: what they were at that moment, whatever the trainer and later captures do."""

import numpy as np
import pytest
import torch

from tests.support.weights import manifest_of
from weightsync.buckets import BucketPlan
from weightsync.shard import LocalShard, ShardWords, shards_of
from weightsync.staging import Staging

SHAPES = {"codes": ("uint8", (7,)), "norm": ("float32", (5,)), "steps": ("int64", (3,)), "w": ("bfloat16", (33, 8))}
MANIFEST = manifest_of(SHAPES)
PLAN = BucketPlan.whole(MANIFEST, 128)


def shards(device: str = "cpu") -> list[LocalShard]:
    generator = torch.Generator().manual_seed(1)
    named = {
        "codes": torch.randint(0, 255, (7,), generator=generator, dtype=torch.uint8),
        "norm": torch.randn(5, generator=generator),
        "steps": torch.randint(-(1 << 40), 1 << 40, (3,), generator=generator),
        "w": torch.randn(33, 8, generator=generator),  # a master in float32
    }
    return shards_of(((name, tensor.to(device)) for name, tensor in named.items()), MANIFEST.dtypes)


def test_captured_words_are_those_of_the_wire_and_stay_when_the_weights_change() -> None:
    held, staging = shards(), Staging(PLAN, 0, pinned=False)
    expected = {bucket.id: ShardWords(held).of(bucket).copy() for bucket in PLAN.buckets}
    staged = staging.fill(ShardWords(held))
    for shard in held:
        shard.tensor.zero_()
    assert {bucket.width for bucket in PLAN.buckets} == {1, 2, 4}
    for bucket in PLAN.buckets:
        assert np.array_equal(staged.of(bucket), expected[bucket.id])
    assert staged.seconds > 0
    assert PLAN.num_bytes <= staging.num_bytes < PLAN.num_bytes + 64 * len(PLAN.buckets)


def test_words_that_never_change_are_copied_once() -> None:
    held, frozen = shards(), {bucket.id for bucket in PLAN.buckets if bucket.width == 2}
    staging = Staging(PLAN, 0, pinned=False, frozen=frozen)
    first = {bucket.id: staging.fill(ShardWords(held)).of(bucket).copy() for bucket in PLAN.buckets}
    for shard in held:
        shard.tensor.zero_()
    again = staging.fill(ShardWords(held))
    for bucket in PLAN.buckets:
        assert np.array_equal(again.of(bucket), first[bucket.id]) == (bucket.id in frozen)


def test_nothing_is_captured_over_what_is_being_published() -> None:
    words, staging = ShardWords(shards()), Staging(PLAN, 0, pinned=False)
    staged = staging.fill(words)
    with staging.reading(staged, PLAN), pytest.raises(ValueError, match="wait for it"):
        staging.fill(words)
    staging.fill(words)  # the buffer is free again, also when the publish failed


def test_words_of_an_earlier_capture_or_another_claim_are_not_published() -> None:
    words, staging = ShardWords(shards()), Staging(PLAN, 0, pinned=False)
    old, new = staging.fill(words), staging.fill(words)
    other = BucketPlan.whole(MANIFEST, 64)
    for staged, plan in ((old, PLAN), (new, other)):
        with pytest.raises(ValueError, match="captured over since"), staging.reading(staged, plan):
            pytest.fail("published")
    with staging.reading(new, PLAN):
        pass


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_words_of_a_device_arrive_in_pinned_memory_before_the_capture_returns() -> None:
    held, words = shards("cuda"), ShardWords(shards())
    staging = Staging(PLAN, 0, pinned=ShardWords(held).on_device)
    assert staging.is_pinned
    expected = {bucket.id: words.of(bucket).copy() for bucket in PLAN.buckets}
    staged = staging.fill(ShardWords(held))
    for shard in held:
        shard.tensor.zero_()
    for bucket in PLAN.buckets:
        assert np.array_equal(staged.of(bucket), expected[bucket.id])
        assert np.array_equal(ShardWords(shards("cuda")).of(bucket), expected[bucket.id])
