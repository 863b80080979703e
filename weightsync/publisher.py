"""Publish versions from the trainer's ranks: diff, put parts, flip head, advance the snapshot.

consumes  the ranks' parameters, as shards         waits for     nothing but transport and log, up to a deadline
produces  versions in the log, parts in transport  unblocks      every server's host, by the flip

Head goes last: a version exists when head names it. The snapshot advances after that and only by what readers read. So
whatever dies, whenever: head, records, parts and snapshot agree, or the snapshot is rebuilt from the log.

Every public method but `head`, `digest_of`, `capture`, `doing` and `prune` is collective: all ranks call it in the same
order. A trainer that calls them beside its own collectives, in another thread, gives the publisher a process group of
its own. `capture` copies the words, and the trainer trains on while `publish` sends them.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from weightsync import sweeper
from weightsync.aligned import AlignedSnapshot
from weightsync.anchors import AnchorWriter
from weightsync.buckets import BucketPlan
from weightsync.codec import FrameHeader
from weightsync.collective import Alone, Collective, from_all, from_rank_zero
from weightsync.commit import RankZero, put_everywhere
from weightsync.config import WeightsyncConfig
from weightsync.digest import digest_of_model_dir, total
from weightsync.errors import Fenced, PublishFailed, WeightsyncError
from weightsync.layout import Bucket, Segment, Words
from weightsync.log.base import VersionLog
from weightsync.log.records import Upload, VersionRecord
from weightsync.manifest import Manifest
from weightsync.merging import Allowance, Merger
from weightsync.reader import Reader
from weightsync.report import Clock, PublishReport
from weightsync.shard import LocalShard, ShardWords
from weightsync.snapshot import Snapshot
from weightsync.staging import Staged, Staging
from weightsync.transport.base import Deadline, Transport
from weightsync.uploader import Uploader
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
        reader = Reader(log, transport, self._key)
        self._held = AlignedSnapshot(self._ranks, log, reader, self._key)
        self._zero = RankZero(log, transport, manifest)
        allowance = Allowance(config.merged_share, manifest.num_bytes)
        self._merger = Merger(self._ranks, self._zero, log, transport, reader, self._key, allowance)
        self._uploader = Uploader(transport, self._ranks.rank, self._key, config.mode, config.encoder_threads)
        self._anchors = AnchorWriter(self._ranks, self._zero, self._uploader, log, manifest.layout_number)
        self._lock = threading.RLock()
        self._branch: int | None = None
        self._plan: BucketPlan | None = None
        self._frozen: frozenset[int] = frozenset()
        self._staging: Staging | None = None
        self._clock = Clock()

    @property
    def doing(self) -> str:
        """The phase of the publish that runs now; empty without one. For whoever waits for it."""
        return self._clock.phase

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
            self._manifest.check(Manifest.from_model_dir(model_dir), "the trainer", str(model_dir))
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
            words: list[ShardWords] = []
            held = from_all(self._ranks, lambda: self._segments(words))
            shards = [[Segment(*row) for row in rows] for rows in held]
            self._plan = BucketPlan.build(self._manifest, shards, self._config.bucket_words)
            plan = self._plan
            from_rank_zero(self._ranks, lambda: self._zero.put_documents(plan))
            self._branch, self._staging = branch, None
            self._frozen = frozenset(b.id for b in plan.of_rank(self._ranks.rank) if words[0].are_frozen(b))
            self._held.begin(plan)
            head = from_rank_zero(self._ranks, self.head)
            self._held.align(head, Deadline(self._config.stage_deadline_s, "rebuild of the snapshot"))
            # Only now: the rebuild may read what ranks of the branch before still have in their memory.
            from_all(self._ranks, lambda: self._transport.announce(branch, self._ranks.rank))

    def capture(self) -> Staged:
        """Copy this rank's words as they are now, for a `publish` in another thread, and return when they may change.

        The copy goes into a buffer of its own (the wire dtype's bytes of the shard), which the next capture fills
        anew. A collective only if `shards` is one.

        Raises:
            ValueError: nothing is claimed yet, or what was captured before is being published at this moment.
            ShardError: the shards moved.
        """
        if self._plan is None:
            raise ValueError("capture: this publisher has claimed no branch.")
        words = ShardWords(self._shards())
        if self._staging is None:
            pinned = words.on_device
            self._staging = Staging(self._plan, self._ranks.rank, pinned=pinned, frozen=self._frozen)
            logger.info(
                "weightsync: rank %d keeps %d bytes of head and %d of the version on its way in memory",
                *(self._ranks.rank, sum(b.num_bytes for b in self._plan.of_rank(self._ranks.rank))),
                self._staging.num_bytes,
            )
        return self._staging.fill(words)

    def publish(self, version: int, staged: Staged | None = None) -> PublishReport:
        """Make the current weights, or captured ones, head, under `version` of the claimed branch.

        Safe to repeat: a version that is head already is left alone. After a failure head and snapshot are as before,
        or, if the answer of the flip was lost for good, the next call finds out and goes on from there.

        Args:
            staged: of the last `capture`, on every rank; without it the weights must not change during the call.
        Raises:
            Fenced: a newer branch owns the log; stop.
            PublishFailed: says why; may be tried again, or the next version published instead.
        """
        with self._lock:
            if self._plan is None or unpack(version)[0] != self._branch:
                raise ValueError(f"publish of {label(version)}: this publisher has claimed branch {self._branch}.")
            deadline = Deadline(self._config.publish_deadline_s, f"publish of {label(version)}")
            self._clock = Clock()
            try:
                with nullcontext() if staged is None else staged.staging.reading(staged, self._plan):
                    return self._publish(version, self._plan, staged, deadline)
            except (Fenced, PublishFailed):
                raise
            except WeightsyncError as error:
                raise PublishFailed(
                    f"version {label(version)} was not published: {error} Head is what it was; training may go on, and "
                    "the next publish covers this one's changes."
                ) from error
            finally:
                self._clock.end()

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
                self._held.align(head, deadline)
                snapshot = self._held.snapshot
                if snapshot is None or self._branch is None:
                    logger.warning("weightsync: no snapshot of head, hence no anchor for %s before a publish", servers)
                    return False
                self._anchors.write(self._held, snapshot, self._branch, deadline)
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

    def _publish(self, version: int, plan: BucketPlan, staged: Staged | None, deadline: Deadline) -> PublishReport:
        clock = self._clock
        if staged is not None:
            clock.seconds["capture"] = staged.seconds
        clock.begin("align")
        head, head_digest, nonce = from_rank_zero(self._ranks, lambda: self._zero.look(version))
        self._held.align(head, deadline)
        words_of = ShardWords(self._shards(), self._uploader.num_read_at_once).of if staged is None else staged.of
        if head == version:
            self._check_repeat(version, words_of)
            held = VersionRecord.from_bytes(*from_rank_zero(self._ranks, lambda: self._zero.held(version)))
            return PublishReport.of(held, clock.end(), repeated=True)
        clock.begin("upload")
        base = self._held.snapshot
        if base is None:
            fresh = Snapshot.capture(plan, self._ranks.rank, version, words_of)
            upload = Upload(version, version, nonce, plan.plan_id, ())
            put = partial(self._uploader.anchor, fresh, layout=self._layout, deadline=deadline)
        else:
            header = FrameHeader(self._layout, base.version, version, 0)
            upload = Upload(version, base.version, nonce, plan.plan_id, ())
            put = partial(self._uploader.delta, base, words_of, header=header, deadline=deadline, frozen=self._frozen)
        mine, tables = put_everywhere(self._ranks, self._zero, upload, put)
        clock.begin("flip")
        record = self._zero.record(upload, tables, (head, head_digest), self._manifest.num_words)
        from_rank_zero(self._ranks, lambda: self._zero.flip(record))
        clock.begin("advance")
        if base is None:
            self._held.snapshot = fresh
        else:
            self._held.advance(base, mine, header)
        clock.begin("anchor")
        branch, interval = unpack(version)[0], self._config.anchor_interval
        anchored, error = self._anchors.write_if_due(self._held, branch, interval, deadline)
        clock.begin("merge")
        merged = self._merger.after(record, self._held.snapshot, deadline)
        return PublishReport.of(record, clock.end(), anchored=anchored, anchor_error=error, num_merged_bytes=merged)

    def _check_repeat(self, version: int, words_of: Callable[[Bucket], Words]) -> None:
        """Head has this name already. Raises PublishFailed if another process gave it to other bits."""
        if from_rank_zero(self._ranks, lambda: self._zero.made(version)):
            return
        snapshot = self._held.snapshot
        if not all(from_all(self._ranks, lambda: snapshot is not None and snapshot.equals(words_of))):
            raise PublishFailed(
                f"version {label(version)} is head already: another start of this branch published other weights under "
                "that name, and it must not stand for both. The trainer goes on to its next number, or claims a new "
                "branch."
            )

    @property
    def _layout(self) -> int:
        return self._manifest.layout_number

    def _segments(self, found: list[ShardWords]) -> list[tuple[str, int, int]]:
        """What this rank's shards hold; their words are added to `found`."""
        found.append(ShardWords(self._shards()))
        return [(s.tensor, s.start, s.words) for s in found[-1].segments()]
