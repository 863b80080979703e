"""Delete versions that nobody needs: records first, under the branch, then their parts."""

from weightsync import chain
from weightsync.acks import held_versions
from weightsync.log.base import VersionLog
from weightsync.transport.base import Transport, run_prefix, upload_prefix, upload_version


def sweep(log: VersionLog, transport: Transport, branch: int, keep_deltas: int) -> int:
    """One pass; returns how many parts were deleted.

    Uploads that no record names go too, if they are not above head: a publish that failed or died left them. One above
    head may be on its way.

    Raises:
        Fenced: a newer branch owns the log; nothing was deleted.
    """
    records = log.records()
    if not records:
        return 0
    pin = log.pin()
    pinned = None if pin is None else pin.version
    gone = chain.sweep(records, held_versions(log.acks()), keep_deltas, pinned)
    # Records first: a reader that finds a record finds its parts, or plans anew.
    log.prune(branch, gone.versions, gone.anchors, gone.merged)
    deleted = sum(transport.delete(upload_prefix(log.run, upload)) for upload in gone.uploads)
    named = {upload_prefix(log.run, upload) for record in log.records() for upload in record.uploads()}
    for prefix in transport.uploads(run_prefix(log.run)):
        if prefix not in named and upload_version(prefix) <= records[-1].version:
            deleted += transport.delete(prefix)
    return deleted
