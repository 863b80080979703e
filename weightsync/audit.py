"""Prove that what lies in log and transport makes the head: read every part, rebuild, compare digests."""

from weightsync import chain
from weightsync.buckets import BucketPlan
from weightsync.config import WeightsyncConfig
from weightsync.errors import WeightsyncError
from weightsync.log.base import VersionLog
from weightsync.log.records import Upload, VersionRecord
from weightsync.reader import Reader, check_complete
from weightsync.rebuild import bring_to_head
from weightsync.transport.base import Deadline, Transport
from weightsync.versions import label


def audit(log: VersionLog, transport: Transport, config: WeightsyncConfig) -> dict[str, object]:
    """Check all uploads, then rebuild head from nothing.

    Returns:
        ok, what was read, what head's digest is and should be, and the problems in words.
    """
    reader = Reader(log, transport, config.seal_key())
    records = log.records()
    problems: list[str] = []
    num_parts = num_bytes = 0
    for record in records:
        anchors = [(record, upload) for upload in [record.anchor] if upload is not None]
        deltas = [(hop, hop.delta) for hop in chain.hops(record) if hop.delta is not None]
        for entry, upload in anchors + deltas:
            try:
                num_parts += _read(reader, entry, upload, config)
                num_bytes += upload.num_bytes
            except WeightsyncError as error:
                problems.append(f"{label(record.version)}: {error}")
    rebuilt = None
    if records:
        head = records[-1]
        try:
            plan = BucketPlan.whole(reader.manifest(head.layout), config.bucket_words)
            deadline = Deadline(config.stage_deadline_s, "rebuild of head")
            rebuilt = bring_to_head(None, records, plan, 0, reader, deadline).digest()
            if rebuilt != head.digest:
                problems.append(f"head {label(head.version)} is rebuilt with another digest.")
        except WeightsyncError as error:
            problems.append(f"head {label(head.version)} cannot be rebuilt: {error}")
    return {
        "ok": not problems,
        "head": label(records[-1].version) if records else None,
        "digest": f"{records[-1].digest:016x}" if records else None,
        "rebuilt": None if rebuilt is None else f"{rebuilt:016x}",
        "parts": num_parts,
        "bytes": num_bytes,
        "problems": problems,
    }


def _read(reader: Reader, record: VersionRecord, upload: Upload, config: WeightsyncConfig) -> int:
    manifest = reader.manifest(record.layout)
    plan = reader.plan(upload.plan, manifest)
    check_complete(record, upload, plan)
    deadline = Deadline(config.stage_deadline_s, f"reading {label(record.version)}")
    return sum(sum(1 for _ in frames) for _, frames in reader.stream([upload], plan.buckets, manifest, deadline))
