"""A model's words before and after a step, as the product holds them; and the clock that all cases share."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from scripts.benches.weightsync_cases.training import Trained
from weightsync.buckets import BucketPlan
from weightsync.codec import FrameHeader
from weightsync.config import WeightsyncConfig
from weightsync.layout import AddressTable, Bucket, Words
from weightsync.manifest import Manifest
from weightsync.shard import LocalShard, ShardWords
from weightsync.versions import pack

BASE, TARGET = pack(1, 1), pack(1, 2)

Figures = dict[str, float]


@dataclass(frozen=True)
class Pair:
    """[n] words of a whole model before and after, in the manifest's order."""

    manifest: Manifest
    old: Words
    new: Words

    @classmethod
    def at(cls, model: Trained, fraction: float) -> "Pair":
        """The pair of a step that changes about this fraction of the words."""
        return cls(model.manifest, model.words(), model.words(model.rate_for(fraction)))

    @cached_property
    def plan(self) -> BucketPlan:
        """Buckets as one trainer rank with the default settings cuts them."""
        return BucketPlan.whole(self.manifest, WeightsyncConfig().bucket_words)

    @cached_property
    def tables(self) -> dict[int, AddressTable]:
        """Addresses by bucket."""
        return {bucket.id: self.plan.table(bucket) for bucket in self.plan.buckets}

    @cached_property
    def snapshot(self) -> dict[int, Words]:
        """The old words by bucket, each in memory of its own, as a rank keeps them."""
        return self._by_bucket(self.old)

    @cached_property
    def staged(self) -> dict[int, Words]:
        """The new words by bucket, as a rank copies them aside so that training goes on."""
        return self._by_bucket(self.new)

    def _by_bucket(self, words: Words) -> dict[int, Words]:
        held = ShardWords(self.shards(words))
        return {bucket.id: held.of(bucket).copy() for bucket in self.plan.buckets}

    def header(self, bucket: Bucket) -> FrameHeader:
        """What the version's frame of a bucket says."""
        return FrameHeader(self.manifest.layout_number, BASE, TARGET, bucket.id)

    def shards(self, words: Words) -> list[LocalShard]:
        """Tensors of one rank that holds everything."""
        whole = {segment.tensor: segment for segment in self.manifest.whole()}
        return [LocalShard(name, tensor, (whole[name],)) for name, tensor in self.tensors(words).items()]

    def tensors(self, words: Words) -> Mapping[str, Tensor]:
        """bfloat16 views of the words, by name."""
        flat = torch.from_numpy(words.view(np.int16)).view(torch.bfloat16)
        return {
            spec.name: flat[spec.offset : spec.offset + spec.num_words].view(spec.shape)
            for spec in self.manifest.tensors
        }


def interleaved(calls: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Least CPU seconds of this thread by call, all of them once in every round, so that noise hits all alike."""
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.thread_time()
            call()
            least[name] = min(least[name], time.thread_time() - start)
    return least


def percent(fraction: float) -> str:
    """As figures are named: 3pct."""
    return f"{100 * fraction:g}pct"
