"""Bring versions from log and transport: documents, frames with every check, digests of the chain.

What a server's host and a trainer that resumes have in common. numpy only.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial

import numpy as np

from weightsync.buckets import BucketPlan
from weightsync.chain import Path
from weightsync.codec import HEAD_BYTES, Frame, FrameHeader, open_frame
from weightsync.diff_numpy import SKIP
from weightsync.digest import total
from weightsync.errors import ChainBroken, CorruptDelta, DigestMismatch, PartMissing
from weightsync.layout import WORD_DTYPE, Bucket
from weightsync.log.base import VersionLog
from weightsync.log.records import Part, Upload, VersionRecord
from weightsync.manifest import Manifest
from weightsync.model_dir import ModelDir
from weightsync.read_ahead import Fetch, ReadAhead
from weightsync.transport.base import Deadline, Transport, part_key, upload_prefix
from weightsync.versions import ORIGIN, label

AHEAD_BYTES = 128 << 20
"""Bytes that parts on their way, checked ones and the one in use may take: eight of the default size, or many small."""


class UnreadableUpload(ChainBroken):
    """An upload with a missing or damaged part: a path without it is looked for."""

    def __init__(self, message: str, nonce: str) -> None:
        super().__init__(message, nonce)
        self.message, self.nonce = message, nonce

    def __str__(self) -> str:
        return self.message


class Reader:
    """Reads versions of one run. Thread-safe but for its caches, which only ever gain equal entries."""

    def __init__(self, log: VersionLog, transport: Transport, key: bytes | None) -> None:
        self._log, self._transport, self._key = log, transport, key
        self._manifests: dict[str, Manifest] = {}
        self._plans: dict[str, BucketPlan] = {}

    def manifest(self, layout: str) -> Manifest:
        """The manifest of a layout id. Raises ChainBroken if the log lacks it, LayoutMismatch if it is damaged."""
        if layout not in self._manifests:
            found = Manifest.from_bytes(self._document(f"layout:{layout}"))
            if found.layout_id != layout:
                raise CorruptDelta(f"the log's manifest {layout} is that of layout {found.layout_id}.")
            self._manifests[layout] = found
        return self._manifests[layout]

    def plan(self, plan: str, manifest: Manifest) -> BucketPlan:
        """The bucket plan of an id. Raises as `manifest`."""
        if plan not in self._plans:
            found = BucketPlan.from_bytes(self._document(f"plan:{plan}"), manifest)
            if found.plan_id != plan:
                raise CorruptDelta(f"the log's bucket plan {plan} is {found.plan_id}.")
            self._plans[plan] = found
        return self._plans[plan]

    def stream(
        self, uploads: Sequence[Upload], buckets: Iterable[Bucket], manifest: Manifest, deadline: Deadline
    ) -> Iterator[tuple[Bucket, Iterator[Frame]]]:
        """Every bucket with its frames in the order of `uploads`; while one is used, the next are fetched and checked.

        However many uploads there are, no more than a budget of bytes is held, or one part that is larger. A bucket's
        frames are gone when the next bucket is asked for.

        Raises:
            UnreadableUpload: a part is missing or damaged.
            DeadlineExceeded, TransportError: the transport does not answer in time.
        """
        tables = [(upload, {part.bucket: part for part in upload.parts}) for upload in uploads]
        wanted = [(b, [(upload, parts[b.id]) for upload, parts in tables if b.id in parts]) for b in buckets]
        fetches = (
            Fetch(
                f"bucket {bucket.id} of {label(upload.version)}",
                part.num_bytes + _most_bytes(bucket),
                partial(self._frame, upload, part, bucket, manifest, deadline),
            )
            for bucket, parts in wanted
            for upload, part in parts
        )
        threads = self._transport.parallel_gets
        with closing(ReadAhead(fetches, _held_bytes, threads=threads, budget=AHEAD_BYTES, deadline=deadline)) as ahead:
            for bucket, parts in wanted:
                frames = (ahead.take() for _ in parts)
                yield bucket, frames
                for _ in frames:
                    pass  # what was not taken

    def _frame(self, upload: Upload, part: Part, bucket: Bucket, manifest: Manifest, deadline: Deadline) -> Frame:
        # The record is not trusted with memory either: no frame is larger than its bucket sent dense.
        if not HEAD_BYTES <= part.num_bytes <= HEAD_BYTES + bucket.num_bytes:
            raise UnreadableUpload(f"its record names {part.num_bytes} bytes for {bucket}.", upload.nonce)
        deadline.check()
        buffer = memoryview(bytearray(part.num_bytes))
        key = part_key(upload_prefix(self._log.run, upload), part.rank, part.bucket)
        header = FrameHeader(manifest.layout_number, upload.base, upload.version, bucket.id)
        try:
            self._transport.get_part_into(key, buffer, deadline_s=deadline.left())
            return open_frame(buffer, bucket=bucket, header=header, key=self._key)
        except (PartMissing, CorruptDelta) as error:
            raise UnreadableUpload(str(error), upload.nonce) from error

    def _document(self, name: str) -> bytes:
        blob = self._log.document(name)
        if blob is None:
            raise ChainBroken(
                f"the log has no {name}: it lost its tail. The trainer writes it again when it publishes."
            )
        return blob


def _most_bytes(bucket: Bucket) -> int:
    """Bytes that the planes of a bucket can have, however well they were compressed: every word changed and escaped."""
    words = bucket.num_words
    return words + words // SKIP + (words + 1) // 2 + bucket.num_bytes


def _held_bytes(frame: Frame) -> int:
    """Bytes that a frame holds at most: its planes, and its buffer, into which those look that were not compressed."""
    if frame.planes is None:
        return HEAD_BYTES + (0 if frame.dense is None else frame.dense.nbytes)
    planes = frame.planes.gaps.nbytes + frame.planes.values.nbytes + frame.planes.escaped.nbytes
    return HEAD_BYTES + 2 * planes


def check_complete(record: VersionRecord, upload: Upload, plan: BucketPlan) -> None:
    """Every bucket of the plan must have a part or be named as unchanged (an anchor: have a part).

    Raises:
        UnreadableUpload: the record does not account for a bucket, or names one twice.
    """
    named = [part.bucket for part in upload.parts]
    if upload.base != upload.version:
        named += record.unchanged
    if sorted(named) != list(range(len(plan.buckets))):
        text = f"the record of {label(upload.version)} accounts for buckets {named}, its plan has {len(plan.buckets)}."
        raise UnreadableUpload(text, upload.nonce)


def dense_frame(directory: ModelDir, manifest: Manifest, bucket: Bucket) -> Frame:
    """A bucket of version 0.0, as a dense frame; the directory's digest is compared elsewhere, once."""
    pieces = [directory.words(s.tensor)[s.start : s.end] for s in bucket.segments]
    words = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    header = FrameHeader(manifest.layout_number, ORIGIN, ORIGIN, bucket.id)
    return Frame(header, bucket, None, words.astype(WORD_DTYPE[bucket.width], copy=False), bucket.num_words, 0, 0)


class ChainDigests:
    """Adds up what the frames of a path say about digests and compares with the records."""

    def __init__(self, path: Path, base_digest: int | None) -> None:
        """`base_digest`: of the version that the reader holds; None if the path has a start."""
        self._path, self._base = path, base_digest
        self._gains = dict.fromkeys((record.version for record in path.deltas), 0)
        self._whole = 0

    def add(self, frames: Iterable[Frame]) -> None:
        """The frames of one bucket."""
        for frame in frames:
            if frame.header.anchor:
                self._whole = total((self._whole, frame.digest_after))
            else:
                self._gains[frame.header.target] = total((self._gains[frame.header.target], frame.digest_delta))

    def check(self) -> None:
        """Raises DigestMismatch: the parts do not make what the records say."""
        digest, start = self._base, self._path.start
        if start is not None:
            digest = start.digest
            if start.anchor is not None and self._whole != digest:
                raise DigestMismatch(_mismatch(start, self._whole))
        for record in self._path.deltas:
            if digest is not None and (found := total((digest, self._gains[record.version]))) != record.digest:
                raise DigestMismatch(_mismatch(record, found))
            digest = record.digest


def _mismatch(record: VersionRecord, found: int) -> str:
    return (
        f"the parts of {label(record.version)} make a model of digest {found:016x}, its record says "
        f"{record.digest:016x}. They are not applied; the trainer is asked for an anchor."
    )
