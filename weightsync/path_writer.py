"""One way through the log as one parts file: fetch, check, add up and write, bucket by bucket."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from weightsync import chain
from weightsync.buckets import BucketPlan
from weightsync.codec import Fold
from weightsync.errors import TransportFull
from weightsync.log.records import describe
from weightsync.manifest import Manifest
from weightsync.model_dir import ModelDir
from weightsync.planes import Scratch
from weightsync.reader import ChainDigests, Reader, check_complete, dense_frame
from weightsync.ticket import FORMAT, Entry, PartsWriter
from weightsync.transport.base import Deadline


class Parts(NamedTuple):
    """A finished parts file: its name, its bytes, and where each bucket lies in it."""

    name: str
    num_bytes: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Step:
    """What is staged at once: a path, cut by one plan.

    Attributes:
        base_digest: of what the server holds; None if the path has a start.
        directory: the model directory, if the path starts there.
    """

    way: chain.Path
    base_digest: int | None
    manifest: Manifest
    plan: BucketPlan
    directory: ModelDir | None

    def content_name(self, key: bytes | None) -> str:
        """A name that two steps share only if their parts files are the same; nobody without the key can tell it."""
        target, start = self.way.target, self.way.start
        begins = self.way.uploads[0].base if start is None else "anchor" if start.anchor is not None else "directory"
        said = [
            *(FORMAT, self.manifest.layout_id, self.plan.plan_id, begins, self.base_digest, target.version),
            *(target.digest, [upload.nonce for upload in self.way.uploads]),
        ]
        hashed = hashlib.blake2b(json.dumps(said).encode(), key=key or b"", digest_size=12)
        return f"{target.version}-{hashed.hexdigest()}"


class PathWriter:
    """Writes parts files. For one thread."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._scratch = Scratch()

    def write(self, step: Step, folder: Path, name: str, deadline: Deadline) -> Parts:
        """Bring a step into a file of `folder`, which is there when every part and the digests were checked.

        While a bucket is added up and written, the next ones are fetched: `Reader.stream` bounds the bytes.

        Raises:
            UnreadableUpload: a part is missing or damaged.
            DigestMismatch: the parts do not make what the records say.
            TransportFull: the folder has no room.
            DeadlineExceeded, TransportError: the transport does not answer in time.
        """
        for record in step.way.deltas:
            assert record.delta is not None, "a path has deltas with parts"
            check_complete(record, record.delta, step.plan)
        try:
            writer = PartsWriter(folder, name)
            try:
                self._fill(writer, step, deadline)
                return Parts(name, writer.finish(), tuple(writer.entries))
            except BaseException:
                writer.abandon()
                raise
        except OSError as error:
            if isinstance(error, ConnectionError | TimeoutError | TransportFull) or error.errno is None:
                raise
            raise TransportFull(
                f"{folder} cannot take {describe(step.way.target)}: {error}. Make room, or set weightsync.stage_dir."
            ) from error

    def _fill(self, writer: PartsWriter, step: Step, deadline: Deadline) -> None:
        digests = ChainDigests(step.way, step.base_digest)
        for bucket, frames in self._reader.stream(step.way.uploads, step.plan.buckets, step.manifest, deadline):
            fold = Fold(bucket)
            if step.directory is not None:
                fold.add(dense_frame(step.directory, step.manifest, bucket))
            for frame in frames:
                digests.add([frame])
                fold.add(frame)
            folded = fold.result(self._scratch)
            if folded is not None and (folded.dense is not None or folded.num_changed):
                writer.add(folded.bucket, folded.planes, folded.dense)
        digests.check()
