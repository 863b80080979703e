"""What rank 0 alone does for a publish: look at the log, write the record, flip head, answer needs, tidy up."""

import logging
import secrets
from collections.abc import Callable
from pathlib import Path

from weightsync import chain
from weightsync.buckets import BucketPlan
from weightsync.collective import Collective, from_all
from weightsync.digest import total
from weightsync.errors import BaseMismatch, Fenced, LogLost, OriginMismatch, PublishFailed, TransportError
from weightsync.log.base import VersionLog
from weightsync.log.records import Part, Upload, VersionRecord, pack_anchor
from weightsync.manifest import Manifest
from weightsync.transport.base import Transport, upload_prefix
from weightsync.uploader import Uploaded
from weightsync.versions import ORIGIN, label, unpack

logger = logging.getLogger(__name__)

RankTable = tuple[list[tuple[int, int]], list[int], int, int]
"""What one rank put: (bucket, bytes) of each part, unchanged buckets, words changed, the digest's gain."""


class RankZero:
    """The only one that writes to the log."""

    def __init__(self, log: VersionLog, transport: Transport, manifest: Manifest) -> None:
        self._log, self._transport, self._manifest = log, transport, manifest
        self._flipping, self._nonces = ORIGIN, set[str]()

    def look(self, version: int) -> tuple[int | None, int, str]:
        """(head's version, its digest, a nonce for the upload) before a publish.

        Raises:
            Fenced: a newer branch, or a later claimant of this one, owns the log; the parts need not even be put.
            PublishFailed: head is past `version`.
        """
        head, branch = self._log.head(), unpack(version)[0]
        self._log.confirm(branch)
        owner = max(self._log.owner(), 0 if head is None else head.branch)
        if owner > branch:
            raise Fenced(
                f"publish of {label(version)}: branch {owner} owns the log. A newer trainer took over; this one "
                "must stop."
            )
        if head is not None and head.version > version:
            raise PublishFailed(
                f"version {label(version)} is behind head {label(head.version)}. Versions of a branch only grow: the "
                "trainer goes on from its own number, or claims a new branch."
            )
        return (None, 0, secrets.token_hex(8)) if head is None else (head.version, head.digest, secrets.token_hex(8))

    def begin_log(self, model_dir: Path, digest: int) -> None:
        """Version 0.0, once.

        Raises:
            OriginMismatch: the log began from other weights.
        """
        first = self._log.digest_of(ORIGIN)
        if first is None and self._log.head() is None:
            self._log.put_document(f"layout:{self._manifest.layout_id}", self._manifest.to_bytes())
            path = str(model_dir.resolve())
            words = self._manifest.num_words
            record = VersionRecord(
                ORIGIN, None, secrets.token_hex(8), self._manifest.layout_id, digest, model_dir=path, num_words=words
            )
            self._log.flip(None, record)
        elif first is not None and first != digest:
            raise OriginMismatch(
                f"this run began from weights of digest {first:016x}, {model_dir} has {digest:016x}. Point "
                "model.path at the directory that the run began with, or give the run a new name."
            )

    def put_documents(self, plan: BucketPlan) -> None:
        """Manifest and plan, under their ids."""
        self._log.put_document(f"layout:{self._manifest.layout_id}", self._manifest.to_bytes())
        self._log.put_document(f"plan:{plan.plan_id}", plan.to_bytes())

    def record(
        self, upload: Upload, tables: list[RankTable], head: tuple[int | None, int], model_words: int
    ) -> VersionRecord:
        """The record of a version from what all ranks put; an upload with base = version is whole."""
        parts = tuple(Part(rank, *part) for rank, table in enumerate(tables) for part in table[0])
        unchanged = tuple(sorted(bucket for table in tables for bucket in table[1]))
        gain = total(table[3] for table in tables)
        changed = sum(table[2] for table in tables)
        filled = Upload(upload.version, upload.base, upload.nonce, upload.plan, parts)
        base, base_digest = head
        whole = upload.base == upload.version
        return VersionRecord(
            version=upload.version,
            base=base,
            nonce=upload.nonce,
            layout=self._manifest.layout_id,
            digest=gain if whole else total((base_digest, gain)),
            delta=None if whole else filled,
            unchanged=unchanged,
            anchor=filled if whole else None,
            num_changed=changed,
            num_words=model_words,
        )

    def flip(self, record: VersionRecord) -> None:
        """Make the record head. No answer is not a failure, and a refused base may be our own late request: look first.

        Raises:
            Fenced: a newer branch owns the log.
            PublishFailed: head is another version's, or nobody can tell.
        """
        self._nonces = {record.nonce} | (self._nonces if record.version == self._flipping else set())
        self._flipping = record.version
        for attempt in ("first", "again"):
            try:
                self._log.flip(record.base, record)
                return
            except BaseMismatch as error:
                if self._is_ours(record):
                    return
                raise PublishFailed(f"version {label(record.version)} was not published: {error}") from error
            except LogLost as error:
                if attempt == "again" or not self._may_retry(record):
                    raise PublishFailed(
                        f"the log did not answer the flip of {label(record.version)} ({error}); whether it is head is "
                        "found out by the next publish."
                    ) from error
                if self._is_ours(record):
                    return

    def asked(self) -> tuple[list[str], bool, int | None]:
        """(servers that need an anchor, whether a new one must be written for them, head)."""
        needs, head = self._log.needs(), self._log.head()
        if head is None or not needs:
            return [], False, None
        servers = [need.server for need in needs]
        have = None if head.anchor is None else head.anchor.nonce
        return servers, have is None or any(need.failed == have for need in needs), head.version

    def anchor_due(self, interval: int) -> bool:
        """Is it time for an anchor of head?"""
        return chain.anchor_due(self._log.records(), interval, self._manifest.num_bytes)

    def commit_anchor(self, branch: int, upload: Upload, tables: list[RankTable]) -> None:
        """Put the anchor beside its version. Raises Fenced, BaseMismatch."""
        parts = tuple(Part(rank, *part) for rank, table in enumerate(tables) for part in table[0])
        self._log.commit_anchor(branch, Upload(upload.version, upload.base, upload.nonce, upload.plan, parts))

    def discard(self, prefix: str) -> None:
        """Delete what a failed upload left; if that fails too, the next prune finds it."""
        try:
            self._transport.delete(prefix)
        except TransportError as error:
            logger.warning("weightsync: parts under %s stay until the next prune: %s", prefix, error)

    def held(self, version: int) -> tuple[bytes, bytes | None]:
        """A version's record and anchor as bytes, for the other ranks. Raises PublishFailed if it is gone."""
        record = self._log.record(version)
        if record is None:
            raise PublishFailed(f"the log lost its head {label(version)} meanwhile; publish it again.")
        return record.to_bytes(), None if record.anchor is None else pack_anchor(record.anchor)

    def made(self, version: int) -> bool:
        """Is the version that the log has under this name the one that this process flipped last?"""
        record = self._log.record(version)
        return record is not None and record.nonce in self._nonces

    def prefix(self, upload: Upload) -> str:
        """What the keys of an upload's parts start with."""
        return upload_prefix(self._log.run, upload)

    def _is_ours(self, record: VersionRecord) -> bool:
        held = self._log.record(record.version)
        return held is not None and held.nonce == record.nonce

    def _may_retry(self, record: VersionRecord) -> bool:
        try:
            self._is_ours(record)
        except LogLost:
            return False
        return True


def put_everywhere(
    ranks: Collective, zero: RankZero, upload: Upload, put: Callable[[str], Uploaded]
) -> tuple[Uploaded, list[RankTable]]:
    """Upload on every rank, a collective: all know what all put, or all fail and what was put is deleted.

    Args:
        put: puts this rank's parts under a prefix.
    Returns:
        What this rank put, and the tables of all.
    """
    prefix = zero.prefix(upload)
    done: list[Uploaded] = []

    def told() -> RankTable:
        done.append(put(prefix))
        return done[0].parts, done[0].unchanged, done[0].num_changed, done[0].gain

    try:
        tables = from_all(ranks, told)
    except BaseException:
        if ranks.rank == 0:
            zero.discard(prefix)
        raise
    return done[0], tables
