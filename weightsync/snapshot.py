"""What head says, as a trainer rank's own words: the base of its next diff, 2 bytes a parameter.

It changes only by what a reader of the log would read: its own frames after their flip, or anchor and chain.
"""

import bisect
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter

import numpy as np

from weightsync.buckets import BucketPlan
from weightsync.chain import Path
from weightsync.codec import Frame, FrameHeader, open_frame
from weightsync.digest import MASK, digest_of_bucket, total
from weightsync.errors import CorruptDelta, DigestMismatch
from weightsync.layout import WORD_DTYPE, AddressTable, Bucket, Segment, Words
from weightsync.link_rates import Form, LinkRates
from weightsync.log.records import Upload
from weightsync.model_dir import ModelDir
from weightsync.reader import Reader, check_complete, dense_frame
from weightsync.transport.base import Deadline
from weightsync.versions import label


class Snapshot:
    """Words and digests of one rank's buckets, at one version."""

    def __init__(self, plan: BucketPlan, rank: int, version: int) -> None:
        self.version = version
        self.plan = plan
        self.buckets = plan.of_rank(rank)
        self._own = {bucket.id: bucket for bucket in self.buckets}
        self.words: dict[int, Words] = {b.id: np.zeros(b.num_words, WORD_DTYPE[b.width]) for b in self.buckets}
        self.digests: dict[int, int] = dict.fromkeys(self.words, 0)
        self.settled: set[int] = set()  # buckets whose words were found to be the trainer's, which never change
        self._tables = {bucket.id: plan.table(bucket) for bucket in self.buckets}
        self._places = _places(self.buckets)

    @classmethod
    def capture(cls, plan: BucketPlan, rank: int, version: int, words_of: Callable[[Bucket], Words]) -> "Snapshot":
        """The current weights, copied."""
        taken = cls(plan, rank, version)
        for bucket in taken.buckets:
            taken.words[bucket.id][:] = words_of(bucket)
        taken.measure()
        return taken

    def table(self, bucket: Bucket) -> AddressTable:
        """Addresses of a bucket's words."""
        return self._tables[bucket.id]

    def digest(self) -> int:
        """This rank's share of the version's digest."""
        return total(self.digests.values())

    def measure(self) -> int:
        """Take every bucket's digest from its words; returns this rank's share."""
        for bucket in self.buckets:
            self.digests[bucket.id] = digest_of_bucket(self.words[bucket.id], self._tables[bucket.id])
        return self.digest()

    def equals(self, words_of: Callable[[Bucket], Words]) -> bool:
        """Are these the rank's words, bit for bit?"""
        return all(np.array_equal(self.words[bucket.id], words_of(bucket)) for bucket in self.buckets)

    def advance(
        self,
        frames: Iterable[tuple[Bucket, bytes]],
        header: FrameHeader,
        key: bytes | None,
        rates: LinkRates | None = None,
    ) -> None:
        """Apply the rank's own frames of a version that head names now.

        `header` is the version's; its bucket field is ignored. Every version so tests the encoder that made it.

        Args:
            rates: is told how long each took.
        Raises:
            DigestMismatch: a frame does not make what it was made for; the words can no longer be trusted.
        """
        for bucket, blob in frames:
            began = perf_counter()
            try:
                frame = open_frame(blob, bucket=bucket, header=header._replace(bucket=bucket.id), key=key)
            except CorruptDelta as error:
                raise DigestMismatch(
                    f"our own frame does not read back: {error} The next version goes whole."
                ) from error
            words = self.words[bucket.id]
            if frame.dense is not None:
                words[:] = frame.dense
                after = digest_of_bucket(words, self._tables[bucket.id])
            else:
                after = (self.digests[bucket.id] + frame.apply(words, self._tables[bucket.id])) & MASK
            if after != frame.digest_after:
                raise DigestMismatch(
                    f"bucket {bucket.id} of {label(header.target)}: our own frame makes digest {after:016x}, it was "
                    f"made for {frame.digest_after:016x}. The next version goes whole."
                )
            self.digests[bucket.id] = after
            if rates is not None:
                form: Form = "changes" if frame.dense is None else "whole"
                rates.note_applied(form, bucket.num_bytes, perf_counter() - began)
        self.version = header.target

    def replay(self, path: Path, reader: Reader, directory: Callable[[], ModelDir], deadline: Deadline) -> None:
        """Become the path's target, as any reader of the log would; plans of other ranks are cut to ours.

        Raises:
            ChainBroken, DeadlineExceeded, TransportError: as the reader; the words are then of no version.
        """
        self.settled.clear()
        start = path.start
        if start is not None and start.anchor is None:
            opened = directory()
            for bucket in self.buckets:
                dense = dense_frame(opened, self.plan.manifest, bucket).dense
                assert dense is not None
                self.words[bucket.id][:] = dense
        elif start is not None and start.anchor is not None:
            self._take(start.anchor, reader, deadline)
        for record in path.deltas:
            assert record.delta is not None, "a path has deltas with parts"
            check_complete(record, record.delta, reader.plan(record.delta.plan, self.plan.manifest))
            self._take(record.delta, reader, deadline)
        self.measure()
        self.version = path.target.version

    def _take(self, upload: Upload, reader: Reader, deadline: Deadline) -> None:
        theirs = reader.plan(upload.plan, self.plan.manifest)
        wanted = [b for b in theirs.buckets if any(True for _ in self._overlaps(b.segments))]
        for bucket, frames in reader.stream([upload], wanted, self.plan.manifest, deadline):
            for frame in frames:
                self._write(bucket, frame)

    def _write(self, bucket: Bucket, frame: Frame) -> None:
        if self._own.get(bucket.id) == bucket:
            frame.apply(self.words[bucket.id], None)
            return
        # Cut for other ranks: as a dense sum, since differences can be added in any cut.
        if frame.dense is not None:
            piece: Words = frame.dense
        else:
            piece = np.zeros(bucket.num_words, WORD_DTYPE[bucket.width])
            frame.apply(piece, None)
        for target, at, source, count in self._overlaps(bucket.segments):
            if frame.dense is not None:
                self.words[target][at : at + count] = piece[source : source + count]
            else:
                self.words[target][at : at + count] += piece[source : source + count]

    def _overlaps(self, segments: Sequence[Segment]) -> Iterable[tuple[int, int, int, int]]:
        """(our bucket, position there, position among `segments`, words) of every shared run."""
        position = 0
        for segment in segments:
            runs = self._places.get(segment.tensor, [])
            i = max(0, bisect.bisect_right(runs, segment.start, key=lambda run: run[0]) - 1)
            while i < len(runs) and runs[i][0] < segment.end:
                start, end, bucket, at = runs[i]
                low, high = max(start, segment.start), min(end, segment.end)
                if low < high:
                    yield bucket, at + low - start, position + low - segment.start, high - low
                i += 1
            position += segment.words


def _places(buckets: Sequence[Bucket]) -> dict[str, list[tuple[int, int, int, int]]]:
    """By tensor: (start, end, bucket, position in it), ascending."""
    places: dict[str, list[tuple[int, int, int, int]]] = {}
    for bucket in buckets:
        at = 0
        for segment in bucket.segments:
            places.setdefault(segment.tensor, []).append((segment.start, segment.end, bucket.id, at))
            at += segment.words
    for runs in places.values():
        runs.sort()
    return places
