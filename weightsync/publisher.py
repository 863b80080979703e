"""Publish versions from the trainer's ranks: diff, put parts, flip head, advance the snapshot.

consumes  the ranks' parameters, as shards         waits for     nothing but transport and log, up to a deadline
produces  versions in the log, parts in transport  unblocks      every server's host, by the flip

Head goes last: a version exists when head names it. The snapshot advances after that and only by what readers read. So
whatever dies, whenever: head, records, parts and snapshot agree, or the snapshot is rebuilt from the log.

Every public method but `head`, `digest_of` and `prune` is collective: all ranks call it in the same order.
"""

import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from weightsync import sweeper
from weightsync.buckets import BucketPlan
from weightsync.codec import FrameHeader
from weightsync.collective import Alone, Collective, from_all, from_rank_zero
from weightsync.commit import RankZero, put_everywhere
from weightsync.config import WeightsyncConfig
from weightsync.digest import digest_of_model_dir, total
from weightsync.errors import (
    ChainBroken,
    DigestMismatch,
    Fenced,
    LogLost,
    PublishFailed,
    TransportError,
    WeightsyncError,
)
from weightsync.layout import Segment
from weightsync.log.base import VersionLog
from weightsync.log.records import Upload, VersionRecord
from weightsync.manifest import Manifest
from weightsync.reader import Reader
from weightsync.rebuild import bring_to_head
from weightsync.report import Clock, PublishReport
from weightsync.shard import LocalShard, ShardWords
from weightsync.snapshot import Snapshot
from weightsync.transport.base import Deadline, Transport
from weightsync.uploader import Uploaded, Uploader
from weightsync.versions import label, unpack

__all__ = ["Alone", "Collective", "PublishReport", "WeightPublisher"]

logger = logging.getLogger(__name__)


class WeightPublisher:
    """One per trainer rank. Thread-safe: calls of one rank run one after the other."""

    def __init__(
        self,
        manifest: Manifest,
        shards: Callable[[], Sequence[LocalShard]],
        log: VersionLog,
        transport: Transport,
        config: WeightsyncConfig,
        collective: Collective | None = None,
    ) -> None:
        """`shards` gives this rank's current weights; the same segments on every call."""
        self._manifest, self._shards, self._log, self._transport = manifest, shards, log, transport
        self._config, self._ranks = config, collective or Alone()
        self._key = config.seal_key()
        self._reader = Reader(log, transport, self._key)
        self._zero = RankZero(log, transport, manifest)
        self._uploader = Uploader(transport, self._ranks.rank, self._key)
        self._lock = threading.RLock()
        self._branch: int | None = None
        self._plan: BucketPlan | None = None
        self._snapshot: Snapshot | None = None

    def head(self) -> int | None:
        """The newest published version."""
        record = self._log.head()
        return None if record is None else record.version

    def digest_of(self, version: int) -> int | None:
        """The digest of a version that was head once; None for one that this log never had."""
        return self._log.digest_of(version)

    def publish_origin(self, model_dir: Path) -> None:
        """Make the model directory version 0.0, once; later calls only compare.

        Raises:
            OriginMismatch: the log began from another directory.
            LayoutMismatch: the directory has other tensors than the trainer's model.
        """
        rank, world = self._ranks.rank, self._ranks.world

        def share() -> int:
            wire = next((spec.dtype for spec in self._manifest.tensors if "float" in spec.dtype), "")
            self._manifest.check(Manifest.from_model_dir(model_dir, wire), "the trainer", str(model_dir))
            return digest_of_model_dir(model_dir, self._manifest, rank, world)

        with self._lock:
            digest = total(from_all(self._ranks, share))
            from_rank_zero(self._ranks, lambda: self._zero.begin_log(model_dir, digest))

    def claim(self, branch: int) -> None:
        """Own the log as `branch` and rebuild the snapshot as a reader of it.

        If no path leads to head the snapshot is left out, and the next version goes whole.

        Raises:
            Fenced: a newer branch owns the log.
            ShardError: the shards do not make up the model.
        """
        with self._lock:
            from_rank_zero(self._ranks, lambda: self._log.claim(branch))
            held = from_all(self._ranks, self._segments)
            shards = [[Segment(*row) for row in rows] for rows in held]
            self._plan = BucketPlan.build(self._manifest, shards, self._config.bucket_words)
            plan = self._plan
            from_rank_zero(self._ranks, lambda: self._zero.put_documents(plan))
            self._branch, self._snapshot = branch, None
            head = from_rank_zero(self._ranks, self.head)
            self._align(head, Deadline(self._config.stage_deadline_s, "rebuild of the snapshot"))
            # Only now: the rebuild may read what ranks of the branch before still have in their memory.
            from_all(self._ranks, lambda: self._transport.announce(branch, self._ranks.rank))

    def publish(self, version: int) -> PublishReport:
        """Make the current weights head, under `version` of the claimed branch.

        Safe to repeat: a version that is head already is left alone. After a failure head and snapshot are as before,
        or, if the answer of the flip was lost for good, the next call finds out and goes on from there.

        Raises:
            Fenced: a newer branch owns the log; stop.
            PublishFailed: says why; may be tried again, or the next version published instead.
        """
        with self._lock:
            if self._plan is None or unpack(version)[0] != self._branch:
                raise ValueError(f"publish of {label(version)}: this publisher has claimed branch {self._branch}.")
            deadline = Deadline(self._config.publish_deadline_s, f"publish of {label(version)}")
            try:
                return self._publish(version, self._plan, deadline)
            except (Fenced, PublishFailed):
                raise
            except WeightsyncError as error:
                raise PublishFailed(
                    f"version {label(version)} was not published: {error} Head is what it was; training may go on, and "
                    "the next publish covers this one's changes."
                ) from error

    def answer_needs(self) -> bool:
        """Write an anchor of head if a server asked for one; True if one was written.

        Raises:
            Fenced: a newer branch owns the log; stop.
            WeightsyncError: the anchor could not be written; the needs stay.
        """
        with self._lock:
            servers, wanted, head = from_rank_zero(self._ranks, self._zero.asked)
            if wanted:
                deadline = Deadline(self._config.publish_deadline_s, f"anchor of {label(head)}")
                self._align(head, deadline)
                if self._snapshot is None:
                    logger.warning("weightsync: no snapshot of head, hence no anchor for %s before a publish", servers)
                    return False
                self._write_anchor(self._snapshot, deadline)
            if servers:
                from_rank_zero(self._ranks, lambda: self._log.answered(servers))
            return bool(wanted)

    def prune(self) -> int:
        """Delete what no living server, no late one and no resumed trainer needs; rank 0 only, others return 0.

        Returns:
            Parts deleted.
        Raises:
            Fenced: a newer branch owns the log; nothing was deleted.
        """
        with self._lock:
            if self._ranks.rank or self._branch is None:
                return 0
            return sweeper.sweep(self._log, self._transport, self._branch, self._config.keep_deltas)

    def _publish(self, version: int, plan: BucketPlan, deadline: Deadline) -> PublishReport:
        clock = Clock()
        head, head_digest, nonce = from_rank_zero(self._ranks, lambda: self._zero.look(version))
        self._align(head, deadline)
        clock.lap("align")
        if head == version:
            held = VersionRecord.from_bytes(*from_rank_zero(self._ranks, lambda: self._zero.held(version)))
            return PublishReport.of(held, clock.seconds, repeated=True)
        words = ShardWords(self._shards())
        clock.lap("shards")
        base = self._snapshot
        if base is None:
            fresh = Snapshot.capture(plan, self._ranks.rank, version, words.of)
            upload = Upload(version, version, nonce, plan.plan_id, ())
            _, tables = put_everywhere(
                self._ranks,
                self._zero,
                upload,
                lambda prefix: self._uploader.anchor(fresh, prefix, self._layout, deadline),
            )
        else:
            header = FrameHeader(self._layout, base.version, version, 0)
            upload = Upload(version, base.version, nonce, plan.plan_id, ())
            mine, tables = put_everywhere(
                self._ranks,
                self._zero,
                upload,
                lambda prefix: self._uploader.delta(base, words.of, prefix, header, deadline),
            )
        clock.lap("upload")
        num_words = self._manifest.num_words
        record = self._zero.record(upload, tables, (head, head_digest), num_words)
        from_rank_zero(self._ranks, lambda: self._zero.flip(record))
        clock.lap("flip")
        if base is None:
            self._snapshot = fresh
        else:
            self._advance(base, mine, header)
        clock.lap("advance")
        anchored, error = self._anchor_if_due(deadline)
        clock.lap("anchor")
        return PublishReport.of(record, clock.seconds, anchored=anchored, anchor_error=error)

    def _align(self, head: int | None, deadline: Deadline) -> None:
        """Bring the snapshot to head: it is there unless the answer to a flip was lost, or the log lost its tail."""
        plan, snapshot = self._plan, self._snapshot
        if snapshot is not None and snapshot.version == head:
            return
        self._snapshot = None
        if plan is None or head is None:
            return
        aligned: list[Snapshot] = []

        def bring() -> int:
            records = [record for record in self._log.records() if record.version <= head]
            aligned.append(bring_to_head(snapshot, records, plan, self._ranks.rank, self._reader, deadline))
            return aligned[0].digest()

        try:
            found = total(from_all(self._ranks, bring))
            if found != (expected := from_rank_zero(self._ranks, lambda: self._log.digest_of(head))):
                raise DigestMismatch(
                    f"the log makes {found:016x} of head {label(head)}, expected {expected or 0:016x}."
                )
            self._snapshot = aligned[0]
        except (ChainBroken, DigestMismatch, TransportError) as error:
            logger.warning("weightsync: no snapshot of head (%s); the next version is published whole", error)

    def _advance(self, snapshot: Snapshot, uploaded: Uploaded, header: FrameHeader) -> None:
        def apply() -> None:
            snapshot.advance(uploaded.frames, header, self._key)

        try:
            from_all(self._ranks, apply)
        except DigestMismatch as error:
            # Head is right or servers will refuse it; our base is not: start over from the log, or go whole.
            logger.error("weightsync: %s", error)
            self._snapshot = None

    def _anchor_if_due(self, deadline: Deadline) -> tuple[bool, str | None]:
        """An anchor beside the version if it is time; its failure is told, and it is due again next time."""
        interval = self._config.anchor_interval
        try:
            if self._snapshot is not None and from_rank_zero(self._ranks, lambda: self._zero.anchor_due(interval)):
                self._write_anchor(self._snapshot, deadline)
                return True, None
        except (TransportError, LogLost, DigestMismatch) as error:
            logger.warning("weightsync: the anchor that is due was not written: %s", error)
            return False, str(error)
        return False, None

    def _write_anchor(self, snapshot: Snapshot, deadline: Deadline) -> None:
        version, branch, plan = snapshot.version, self._branch, snapshot.plan
        # An anchor is how servers recover, so it must not hand on what memory or a bug did to the snapshot.
        found = total(from_all(self._ranks, snapshot.measure))
        expected = from_rank_zero(self._ranks, lambda: self._log.digest_of(version))
        if found != expected:
            self._snapshot = None
            raise DigestMismatch(
                f"the snapshot of {label(version)} has digest {found:016x}, published {expected or 0:016x}: it is "
                "dropped, and the next version goes whole."
            )
        nonce = from_rank_zero(self._ranks, lambda: secrets.token_hex(8))
        upload = Upload(version, version, nonce, plan.plan_id, ())
        _, tables = put_everywhere(
            self._ranks,
            self._zero,
            upload,
            lambda prefix: self._uploader.anchor(snapshot, prefix, self._layout, deadline),
        )
        assert branch is not None
        from_rank_zero(self._ranks, lambda: self._zero.commit_anchor(branch, upload, tables))

    @property
    def _layout(self) -> int:
        return self._manifest.layout_number

    def _segments(self) -> list[tuple[str, int, int]]:
        return [(s.tensor, s.start, s.words) for s in ShardWords(self._shards()).segments()]
