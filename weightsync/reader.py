"""Bring versions from log and transport: documents, frames with every check, digests of the chain.

What a server's host and a trainer that resumes have in common. numpy only.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from weightsync.buckets import BucketPlan
from weightsync.chain import Path
from weightsync.codec import HEAD_BYTES, Frame, FrameHeader, open_frame
from weightsync.digest import total
from weightsync.errors import ChainBroken, CorruptDelta, DigestMismatch, PartMissing
from weightsync.layout import WORD_DTYPE, Bucket
from weightsync.log.base import VersionLog
from weightsync.log.records import Part, Upload, VersionRecord
from weightsync.manifest import Manifest
from weightsync.model_dir import ModelDir
from weightsync.transport.base import Deadline, Transport, part_key, upload_prefix
from weightsync.versions import ORIGIN, label

_AHEAD = 3  # buckets on their way or checked, while one is used: bounds the memory
_READERS = 2


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

    def frames(
        self, uploads: Sequence[Upload], buckets: Iterable[Bucket], manifest: Manifest, deadline: Deadline
    ) -> Iterator[tuple[Bucket, list[Frame]]]:
        """Every bucket with its frames in the order of `uploads`, a few buckets fetched ahead.

        Raises:
            UnreadableUpload: a part is missing or damaged.
            DeadlineExceeded, TransportError: the transport does not answer in time.
        """
        tables = [(upload, {part.bucket: part for part in upload.parts}) for upload in uploads]
        ahead: list[tuple[Bucket, list[Future[Frame]]]] = []
        pool = ThreadPoolExecutor(_READERS, thread_name_prefix="weightsync-read")
        try:
            for bucket in buckets:
                futures = [
                    pool.submit(self._frame, upload, parts[bucket.id], bucket, manifest, deadline)
                    for upload, parts in tables
                    if bucket.id in parts
                ]
                ahead.append((bucket, futures))
                if len(ahead) > _AHEAD:
                    first, ready = ahead.pop(0)
                    yield first, [future.result() for future in ready]
            for first, ready in ahead:
                yield first, [future.result() for future in ready]
        finally:
            pool.shutdown(cancel_futures=True)

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
