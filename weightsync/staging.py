"""A rank's words of one version, copied out of the trainer's way: it trains on while they are published.

One buffer of the rank's buckets (the wire dtype's bytes of its shard), made once and filled anew for each version. It
is pinned if a shard lies on a device, so that the copy runs at the link's rate.
"""

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from time import monotonic

import torch

from weightsync.buckets import BucketPlan
from weightsync.layout import WORD_DTYPE, Bucket, Words
from weightsync.shard import ShardWords

_ALIGN = 64


class Staged:
    """The words of a rank's buckets as `capture` found them.

    Attributes:
        seconds: that the copy took; nothing else of a publish keeps the trainer waiting.
    """

    def __init__(self, staging: "Staging", turn: int, seconds: float) -> None:
        self.staging, self.turn, self.seconds = staging, turn, seconds

    def of(self, bucket: Bucket) -> Words:
        """[num_words] unsigned."""
        return self.staging.words(bucket)


class Staging:
    """The buffer of one plan. `fill` on the trainer's thread, `reading` on the one that publishes."""

    def __init__(self, plan: BucketPlan, rank: int, *, pinned: bool, frozen: Collection[int] = ()) -> None:
        """`frozen`: buckets whose words never change: they are copied once."""
        self.plan, self._frozen = plan, frozen
        self._settled: set[int] = set()
        self._buckets = plan.of_rank(rank)
        self._offsets: dict[int, int] = {}
        at = 0
        for bucket in self._buckets:
            self._offsets[bucket.id] = at
            at += -(-bucket.num_bytes // _ALIGN) * _ALIGN
        self._bytes = torch.empty(at, dtype=torch.uint8, pin_memory=pinned)
        self._lock = threading.Lock()
        self._turn = 0
        self._is_read = False

    @property
    def num_bytes(self) -> int:
        return self._bytes.numel()

    @property
    def is_pinned(self) -> bool:
        """Whether a device copies into it without a detour."""
        return self._bytes.is_pinned()

    def fill(self, words: ShardWords) -> Staged:
        """Copy the words as they are now; what was staged before is gone.

        Raises:
            ValueError: it is being published at this moment.
            ShardError: a shard moved.
        """
        began = monotonic()
        with self._lock:
            if self._is_read:
                raise ValueError("capture: the version before is being published out of this buffer; wait for it.")
            self._turn += 1
            for bucket in self._buckets:
                if bucket.id in self._settled:
                    continue
                at = self._offsets[bucket.id]
                words.copy(bucket, self._bytes[at : at + bucket.num_bytes])
            if self.is_pinned:
                # Not later: the optimizer may write the weights as soon as this returns.
                torch.cuda.current_stream().synchronize()
            self._settled.update(self._frozen)
            return Staged(self, self._turn, monotonic() - began)

    def words(self, bucket: Bucket) -> Words:
        """[num_words] unsigned, where they lie."""
        at = self._offsets[bucket.id]
        return self._bytes[at : at + bucket.num_bytes].numpy().view(WORD_DTYPE[bucket.width])

    @contextmanager
    def reading(self, staged: Staged, plan: BucketPlan) -> Iterator[None]:
        """Keep `staged` as it is for the block.

        Raises:
            ValueError: a later capture took its place, or it was captured for another claim.
        """
        with self._lock:
            if staged.turn != self._turn or plan is not self.plan:
                raise ValueError("publish: these words were captured for another claim, or captured over since.")
            self._is_read = True
        try:
            yield
        finally:
            with self._lock:
                self._is_read = False
