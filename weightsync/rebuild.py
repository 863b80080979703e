"""Bring a rank's snapshot to head as any reader of the log would: on from where it is, or from a whole version."""

import logging
from collections.abc import Sequence
from pathlib import Path

from weightsync import chain
from weightsync.buckets import BucketPlan
from weightsync.errors import ChainBroken, ModelDirError
from weightsync.log.records import VersionRecord
from weightsync.model_dir import ModelDir
from weightsync.reader import Reader, UnreadableUpload
from weightsync.snapshot import Snapshot
from weightsync.transport.base import Deadline
from weightsync.versions import label

logger = logging.getLogger(__name__)


def bring_to_head(
    snapshot: Snapshot | None,
    records: Sequence[VersionRecord],
    plan: BucketPlan,
    rank: int,
    reader: Reader,
    deadline: Deadline,
) -> Snapshot:
    """A snapshot at the last of `records`. `snapshot` must not be used afterwards: it may have been moved half-way.

    An upload that cannot be read is left out and another path is looked for.

    Raises:
        ChainBroken: no path is left. The next version then goes whole.
        DeadlineExceeded, TransportError: the transport does not answer in time.
    """
    unreadable: set[str] = set()
    head = records[-1]
    while snapshot is None or snapshot.version != head.version:
        way = chain.path(records, None if snapshot is None else snapshot.version, unreadable)
        if way is None:
            raise ChainBroken(
                f"no path leads to head {label(head.version)}"
                + (f"; unreadable: {sorted(unreadable)}" if unreadable else "")
                + ". The next version is published whole."
            )
        if snapshot is None or way.start is not None:
            snapshot = Snapshot(plan, rank, head.version if way.start is None else way.start.version)
        target, snapshot = snapshot, None
        try:
            target.replay(way, reader, lambda: _directory(records), deadline)
            snapshot = target
        except UnreadableUpload as error:
            logger.warning("weightsync: %s", error)
            unreadable.add(error.nonce)
        except ModelDirError as error:
            logger.warning("weightsync: %s", error)
            unreadable.add(chain.ORIGIN_NONCE)
    return snapshot


def _directory(records: Sequence[VersionRecord]) -> ModelDir:
    path = next((record.model_dir for record in records if record.model_dir is not None), None)
    if path is None:
        raise ModelDirError("the log names no model directory.")
    return ModelDir(Path(path))
