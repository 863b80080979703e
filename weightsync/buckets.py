"""The plan that turns the trainer's shards into buckets: who owns which words, cut how, under which bucket id."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import blake3
import msgpack

from weightsync.errors import LayoutMismatch, ShardError
from weightsync.layout import AddressTable, Bucket, Segment, address_table
from weightsync.manifest import Manifest

_SCHEMA = 1


@dataclass(frozen=True)
class BucketPlan:
    """All buckets of one layout; together they hold every word once. Bucket i has id i."""

    manifest: Manifest
    buckets: tuple[Bucket, ...]

    @classmethod
    def build(cls, manifest: Manifest, shards: Sequence[Sequence[Segment]], bucket_words: int) -> Self:
        """Plan the shards of every rank.

        A segment that several ranks hold (a replicated parameter) belongs to the lowest of them.

        Raises:
            ShardError: words that nobody holds, that two ranks hold in different cuts, or of an unknown tensor.
        """
        owned = _assign(manifest, shards)
        buckets: list[Bucket] = []
        for rank, segments in enumerate(owned):
            buckets.extend(manifest.buckets(segments, bucket_words, rank, len(buckets)))
        return cls(manifest, tuple(buckets))

    @classmethod
    def whole(cls, manifest: Manifest, bucket_words: int) -> Self:
        """The plan of one rank that holds everything; what a reader of a model directory takes."""
        return cls.build(manifest, [manifest.whole()], bucket_words)

    @cached_property
    def plan_id(self) -> str:
        """16 hex digits, from the canonical encoding."""
        return blake3.blake3(self.to_bytes()).digest(8).hex()

    @property
    def num_bytes(self) -> int:
        return sum(bucket.num_bytes for bucket in self.buckets)

    def of_rank(self, rank: int) -> list[Bucket]:
        """The buckets that one rank encodes."""
        return [bucket for bucket in self.buckets if bucket.rank == rank]

    def table(self, bucket: Bucket) -> AddressTable:
        """Addresses of a bucket's words."""
        return address_table(bucket.segments, self.manifest.by_name)

    def to_bytes(self) -> bytes:
        """Canonical encoding; tensors by their index in the manifest."""
        index = {spec.name: i for i, spec in enumerate(self.manifest.tensors)}
        rows = [
            [bucket.rank, bucket.width, [[index[s.tensor], s.start, s.words] for s in bucket.segments]]
            for bucket in self.buckets
        ]
        packed: bytes = msgpack.packb([_SCHEMA, self.manifest.layout_id, rows])
        return packed

    @classmethod
    def from_bytes(cls, blob: bytes, manifest: Manifest) -> Self:
        """The plan of `to_bytes`, checked against the manifest again.

        Raises:
            LayoutMismatch: not a plan of this schema and manifest.
        """
        try:
            schema, layout, rows = msgpack.unpackb(blob)
            if schema != _SCHEMA or layout != manifest.layout_id:
                raise LayoutMismatch(
                    f"bucket plan of schema {schema} for layout {layout}, this reader has schema {_SCHEMA} and layout "
                    f"{manifest.layout_id}. Run the same asyncrl with the same model on both sides."
                )
            names = [spec.name for spec in manifest.tensors]
            buckets = tuple(
                Bucket(i, rank, width, tuple(Segment(names[t], start, words) for t, start, words in segments))
                for i, (rank, width, segments) in enumerate(rows)
            )
            _check(manifest, buckets)
        except (ValueError, TypeError, IndexError, msgpack.UnpackException) as error:
            if isinstance(error, LayoutMismatch):
                raise
            raise LayoutMismatch(f"the log's bucket plan cannot be read ({error!r}).") from error
        return cls(manifest, buckets)


def _assign(manifest: Manifest, shards: Sequence[Sequence[Segment]]) -> list[list[Segment]]:
    """Segments by owning rank, each tensor covered exactly once."""
    by_tensor: dict[str, list[tuple[int, int, int]]] = {}
    for rank, segments in enumerate(shards):
        for segment in segments:
            if segment.words:
                by_tensor.setdefault(segment.tensor, []).append((segment.start, segment.end, rank))
    # A pipeline's last stage holds a tied head of its own; the words travel under the embedding's name.
    unknown = sorted(by_tensor.keys() - manifest.by_name.keys() - {alias for alias, _ in manifest.ties})
    if unknown:
        raise ShardError(
            f"the trainer holds {unknown[0]} (and {len(unknown) - 1} more) that the model directory does not: servers "
            "would never get it. Compare the names of the checkpoint with those of the trainer's model."
        )
    owned: list[list[Segment]] = [[] for _ in shards]
    for spec in manifest.tensors:
        at, previous = 0, (0, 0)
        for start, end, rank in sorted(by_tensor.get(spec.name, ())):
            if (start, end) == previous:
                continue  # a replica on a higher rank
            if start != at or end > spec.num_words:
                raise ShardError(
                    f"tensor {spec.name} of {spec.num_words} words: rank {rank} holds words {start} to {end}, expected "
                    f"a shard that starts at {at}. Every word must be held once, or by several ranks in the same cut."
                )
            owned[rank].append(Segment(spec.name, start, end - start))
            at, previous = end, (start, end)
        if at != spec.num_words:
            raise ShardError(
                f"tensor {spec.name} of {spec.num_words} words: the trainer holds only {at}. Servers would keep old "
                "words for the rest; the model directory and the trainer's model must have the same tensors."
            )
    return owned


def _check(manifest: Manifest, buckets: Sequence[Bucket]) -> None:
    for bucket in buckets:
        if any(manifest.by_name[segment.tensor].width != bucket.width for segment in bucket.segments):
            raise ValueError(f"bucket {bucket.id} of width {bucket.width} holds a tensor of another width")
    _assign(manifest, [[segment for bucket in buckets for segment in bucket.segments]])
    if sum(bucket.num_words for bucket in buckets) != manifest.num_words:
        raise ValueError("a word is in two buckets")
