"""Whole versions beside the changes, written by all ranks together: when it is time, or when a server asks."""

import logging
import secrets

from weightsync.aligned import AlignedSnapshot
from weightsync.collective import Collective, from_all, from_rank_zero
from weightsync.commit import RankZero, put_everywhere
from weightsync.digest import total
from weightsync.errors import DigestMismatch, LogLost, TransportError
from weightsync.log.base import VersionLog
from weightsync.log.records import Upload
from weightsync.snapshot import Snapshot
from weightsync.transport.base import Deadline
from weightsync.uploader import Uploader
from weightsync.versions import label

logger = logging.getLogger(__name__)


class AnchorWriter:
    """Writes what the ranks' snapshots hold as an anchor of head."""

    def __init__(self, ranks: Collective, zero: RankZero, uploader: Uploader, log: VersionLog, layout: int) -> None:
        self._ranks, self._zero, self._uploader, self._log, self._layout = ranks, zero, uploader, log, layout

    def write(self, held: AlignedSnapshot, snapshot: Snapshot, branch: int, deadline: Deadline) -> None:
        """Measure, upload and commit `snapshot`, which `held` holds.

        Raises:
            DigestMismatch: a snapshot was damaged; all are dropped.
            Fenced, LogLost, TransportError: there is no anchor; head is as it was.
        """
        version, plan = snapshot.version, snapshot.plan
        # An anchor is how servers recover, so it must not hand on what memory or a bug did to the snapshot.
        found = total(from_all(self._ranks, snapshot.measure))
        expected = from_rank_zero(self._ranks, lambda: self._log.digest_of(version))
        if found != expected:
            held.drop()
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
        from_rank_zero(self._ranks, lambda: self._zero.commit_anchor(branch, upload, tables))

    def write_if_due(
        self, held: AlignedSnapshot, branch: int, interval: int, deadline: Deadline
    ) -> tuple[bool, str | None]:
        """Whether one was written, and why one that is due was not: then it is due again next time. Raises Fenced."""
        snapshot = held.snapshot
        try:
            if snapshot is None or not from_rank_zero(self._ranks, lambda: self._zero.anchor_due(interval)):
                return False, None
            self.write(held, snapshot, branch, deadline)
        except (TransportError, LogLost, DigestMismatch) as error:
            logger.warning("weightsync: the anchor that is due was not written: %s", error)
            return False, str(error)
        return True, None
