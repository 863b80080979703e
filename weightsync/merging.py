"""Merged deltas: fold the way of a server that is several versions behind into one upload, a fraction of its bytes.

A weight that a step moves over a rounding border is often moved back by a later one, so the changes of many versions
together are far fewer than their sum. Differences add, hence no base is needed: a rank reads its own parts back and
compares what they make with its snapshot of head.
"""

import logging
import secrets
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from weightsync import chain
from weightsync.codec import Encoded, Encoder, Frame, FrameHeader
from weightsync.collective import Collective, from_rank_zero
from weightsync.commit import RankZero, put_everywhere
from weightsync.digest import MASK, total
from weightsync.errors import BaseMismatch, ChainBroken, DigestMismatch, LogLost, TransportError
from weightsync.layout import Bucket
from weightsync.log.base import VersionLog
from weightsync.log.records import MergedDelta, Part, Upload, VersionRecord
from weightsync.reader import Reader
from weightsync.snapshot import Snapshot
from weightsync.transport.base import Deadline, Transport, part_key
from weightsync.uploader import Uploaded
from weightsync.versions import label

logger = logging.getLogger(__name__)

FEWEST_HOPS = 3
"""A way of fewer deltas is left alone: between two versions every server is one or two behind."""


def due(records: Sequence[VersionRecord], held: Collection[int], plan: str) -> chain.Path | None:
    """The way to head that is worth folding now, if any. Pure.

    A way is folded when the longest of its deltas spans at most half of it, so a server that stays away gets one merged
    delta over 3, 6, 12, ... versions and what is put for it is less than twice the last one. Of several ways the one
    that saves its servers most bytes: a way serves who holds its base, and who will come by that base.

    Args:
        records: the log's, ascending.
        held: the version of every living server, once for each.
        plan: id of the bucket plan in which the ranks can fold.
    """
    place = {record.version: i for i, record in enumerate(records)}
    best: tuple[int, chain.Path] | None = None
    for base in sorted(set(held) & place.keys()):
        way = chain.path(records, base)
        if way is None or way.start is not None or len(way.deltas) < FEWEST_HOPS:
            continue
        spans = [place[hop.version] - place[hop.base] for hop in way.deltas if hop.base is not None]
        if 2 * max(spans) > sum(spans) or any(upload.plan != plan for upload in way.uploads):
            continue
        saved = way.num_bytes * sum(version <= base for version in held)
        if best is None or saved > best[0]:
            best = saved, way
    return None if best is None else best[1]


class Allowance:
    """How many bytes may be put for merged deltas: a share of what versions take, and of one model in advance."""

    def __init__(self, share: float, model_bytes: int) -> None:
        self._share, self._most = share, share * model_bytes
        self._left = self._most

    def earn(self, num_bytes: int) -> None:
        """Bytes that a version took."""
        self._left = min(self._most, self._left + self._share * num_bytes)

    def spend(self, num_bytes: int) -> None:
        """Bytes that a merged delta took; the last one may be larger than what is left."""
        self._left -= num_bytes

    @property
    def is_open(self) -> bool:
        return self._left > 0


class Merger:
    """One per trainer rank. Every method is collective."""

    def __init__(
        self,
        ranks: Collective,
        zero: RankZero,
        log: VersionLog,
        transport: Transport,
        reader: Reader,
        key: bytes | None,
        allowance: Allowance,
    ) -> None:
        self._ranks, self._zero, self._log, self._transport = ranks, zero, log, transport
        self._reader, self._encoder, self._allowance = reader, Encoder(key), allowance
        self._given_up: set[int] = set()

    def after(self, record: VersionRecord, snapshot: Snapshot | None, deadline: Deadline) -> int:
        """Merge what is due now that `record` is head. That it cannot be done is told, and no failure of the version.

        Args:
            snapshot: of `record`; without one, or with one of another version, nothing is merged.
        Returns:
            Bytes of the merged delta that was committed, 0 if none was.
        Raises:
            Fenced: a newer branch owns the log.
        """
        self._allowance.earn(sum(upload.num_bytes for upload in record.uploads()))
        plan = None if snapshot is None or snapshot.version != record.version else snapshot.plan.plan_id
        base = record.version
        try:
            found = from_rank_zero(self._ranks, lambda: self._look(record.version, plan))
            if found is None or snapshot is None:
                return 0
            base, nonces, nonce = found
            return self._merge(record, snapshot, base, nonces, nonce, deadline)
        except (ChainBroken, DigestMismatch, BaseMismatch) as error:
            # Its parts will not come back: not tried again with every version.
            self._given_up.add(base)
            logger.warning("weightsync: no merged delta from %s: %s", label(base), error)
        except (TransportError, LogLost) as error:
            logger.warning("weightsync: no merged delta to %s: %s", label(record.version), error)
        return 0

    def _look(self, head: int, plan: str | None) -> tuple[int, list[str], str] | None:
        """Rank 0's choice: the base, what lies between, and a nonce for the upload."""
        if plan is None or not self._allowance.is_open:
            return None
        records = self._log.records()
        held = [ack.version for ack in self._log.acks().values() if ack.version not in self._given_up]
        way = due(records, held, plan) if records and records[-1].version == head else None
        if way is None:
            return None
        base = way.deltas[0].base
        assert base is not None, "a hop has a base"
        return base, [upload.nonce for upload in way.uploads], secrets.token_hex(8)

    def _merge(
        self, record: VersionRecord, snapshot: Snapshot, base: int, nonces: list[str], nonce: str, deadline: Deadline
    ) -> int:
        upload = Upload(record.version, base, nonce, snapshot.plan.plan_id, ())
        way: list[chain.Path] = []

        def put(prefix: str) -> Uploaded:
            records = [entry for entry in self._log.records() if entry.version <= record.version]
            found = chain.path(records, base)
            if found is None or [part.nonce for part in found.uploads] != nonces:
                raise ChainBroken(f"the log changed between {label(base)} and {label(record.version)} meanwhile.")
            way.append(found)
            try:
                return self._put(snapshot, found, prefix, upload, deadline)
            except ChainBroken as error:
                raise ChainBroken(str(error)) from error  # its kind, as the other ranks are told it

        _, tables = put_everywhere(self._ranks, self._zero, upload, put)
        num_bytes = sum(size for table in tables for _, size in table[0])
        self._allowance.spend(num_bytes)
        if num_bytes >= way[0].num_bytes:
            from_rank_zero(self._ranks, lambda: self._zero.discard(self._zero.prefix(upload)))
            return 0
        parts = tuple(Part(rank, *part) for rank, table in enumerate(tables) for part in table[0])
        merged = MergedDelta(
            Upload(upload.version, base, nonce, upload.plan, parts),
            tuple(sorted(bucket for table in tables for bucket in table[1])),
            sum(table[2] for table in tables),
        )
        gain = total(table[3] for table in tables)
        from_rank_zero(self._ranks, lambda: self._commit(record, merged, gain))
        return num_bytes

    def _commit(self, record: VersionRecord, merged: MergedDelta, gain: int) -> None:
        before = self._log.digest_of(merged.base)
        if before is None or total((before, gain)) != record.digest:
            self._zero.discard(self._zero.prefix(merged.upload))
            raise DigestMismatch(
                f"the deltas between {label(merged.base)} and {label(merged.version)} do not make one out of the other."
            )
        self._log.commit_merged(record.branch, merged)

    def _put(self, snapshot: Snapshot, way: chain.Path, prefix: str, upload: Upload, deadline: Deadline) -> Uploaded:
        done = Uploaded()
        header = FrameHeader(snapshot.plan.manifest.layout_number, upload.base, upload.version, 0)
        frames = self._reader.stream(way.uploads, snapshot.buckets, snapshot.plan.manifest, deadline)
        for bucket, found in frames:
            encoded = self._fold(snapshot, bucket, found, header._replace(bucket=bucket.id))
            if encoded is None:
                done.unchanged.append(bucket.id)
                continue
            key = part_key(prefix, self._ranks.rank, bucket.id)
            self._transport.put_part(key, [memoryview(encoded.frame)], deadline_s=deadline.left())
            done.parts.append((bucket.id, len(encoded.frame)))
            done.num_changed += encoded.num_changed
            done.gain = total((done.gain, encoded.digest_delta))
        return done

    def _fold(self, snapshot: Snapshot, bucket: Bucket, frames: Iterable[Frame], header: FrameHeader) -> Encoded | None:
        """One frame for the bucket, None if its words are the same at both ends. Raises DigestMismatch."""
        words, after = snapshot.words[bucket.id], snapshot.digests[bucket.id]
        changes, gain, is_dense = np.zeros_like(words), 0, False
        for frame in frames:
            gain = total((gain, frame.digest_delta))
            is_dense = is_dense or frame.dense is not None
            frame.apply(changes, None)
        if is_dense:
            return self._encoder.dense(words, header, gain, after)
        encoded = self._encoder.delta(words - changes, words, header, snapshot.table(bucket), (after - gain) & MASK)
        if (0 if encoded is None else encoded.digest_delta) != gain:
            raise DigestMismatch(f"bucket {bucket.id}: its parts do not add up to what the snapshot holds.")
        return encoded
