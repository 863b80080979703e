"""The ranks' snapshots, kept together: all of them at head, or none.

`align` and `advance` are collective; `begin` and `drop` are called by every rank at the same point.
"""

import logging

from weightsync.buckets import BucketPlan
from weightsync.codec import FrameHeader
from weightsync.collective import Collective, from_all, from_rank_zero
from weightsync.digest import total
from weightsync.errors import ChainBroken, DigestMismatch, TransportError
from weightsync.log.base import VersionLog
from weightsync.reader import Reader
from weightsync.rebuild import bring_to_head
from weightsync.snapshot import Snapshot
from weightsync.transport.base import Deadline
from weightsync.uploader import Uploaded
from weightsync.versions import label

logger = logging.getLogger(__name__)


class AlignedSnapshot:
    """This rank's snapshot. Where it is None it is so on every rank, and the next version is published whole."""

    def __init__(self, ranks: Collective, log: VersionLog, reader: Reader, key: bytes | None) -> None:
        self._ranks, self._log, self._reader, self._key = ranks, log, reader, key
        self._plan: BucketPlan | None = None
        self.snapshot: Snapshot | None = None

    def begin(self, plan: BucketPlan) -> None:
        """Start over with another plan, without a snapshot."""
        self._plan, self.snapshot = plan, None

    def drop(self) -> None:
        """It can no longer be trusted; every rank says so."""
        self.snapshot = None

    def align(self, head: int | None, deadline: Deadline) -> None:
        """Bring the snapshot to head: it is there unless the answer to a flip was lost, or the log lost its tail."""
        snapshot, plan = self.snapshot, self._plan
        if snapshot is not None and snapshot.version == head:
            return
        self.snapshot = None
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
            self.snapshot = aligned[0]
        except (ChainBroken, DigestMismatch, TransportError) as error:
            logger.warning("weightsync: no snapshot of head (%s); the next version is published whole", error)

    def advance(self, snapshot: Snapshot, uploaded: Uploaded, header: FrameHeader) -> None:
        """Move to the version that head names since its flip, by the frames that made it."""

        def apply() -> None:
            snapshot.advance(uploaded.frames, header, self._key, uploaded.rates)

        try:
            from_all(self._ranks, apply)
        except DigestMismatch as error:
            # Head is right or servers will refuse it; our base is not: start over from the log, or go whole.
            logger.error("weightsync: %s", error)
            self.snapshot = None
