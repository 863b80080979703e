"""Which parts lead from what a reader holds to head, when an anchor is due, and what may be deleted. Pure.

Records come from the log in ascending order; each one's base is the record before it, also where a new branch goes
back, so the chain is a line although versions form a tree. Merged deltas are short cuts along it.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from weightsync.log.records import Upload, VersionRecord
from weightsync.versions import ORIGIN

ORIGIN_NONCE = "model directory"
"""What stands for the model directory among unreadable uploads."""


@dataclass(frozen=True)
class Path:
    """What to read: a whole version unless the reader holds the first delta's base, then deltas in order.

    A merged delta is one of them, as a record on its own base (`VersionRecord.by`).
    """

    start: VersionRecord | None
    deltas: tuple[VersionRecord, ...]

    @property
    def target(self) -> VersionRecord:
        """The version that the path makes."""
        record = self.deltas[-1] if self.deltas else self.start
        assert record is not None, "a path has a start or a delta"
        return record

    @property
    def num_bytes(self) -> int:
        """Bytes to bring from the transport."""
        return sum(upload.num_bytes for upload in self.uploads)

    @property
    def uploads(self) -> list[Upload]:
        """What is read from the transport, in order."""
        anchors = [self.start.anchor] if self.start is not None and self.start.anchor is not None else []
        return anchors + [record.delta for record in self.deltas if record.delta is not None]

    def of_one_plan(self) -> "Path":
        """The longest beginning whose uploads were cut by one plan: what can be folded bucket by bucket.

        The plan changes when the trainer resumes on another number of ranks; a reader then takes two steps.
        """
        plans = [upload.plan for upload in self.uploads]
        same = next((i for i, plan in enumerate(plans) if plan != plans[0]), len(plans))
        return replace(self, deltas=self.deltas[: same - (len(plans) - len(self.deltas))])


def path(records: Sequence[VersionRecord], have: int | None, unreadable: Collection[str] = ()) -> Path | None:
    """The path to head that brings the fewest bytes, over deltas, merged deltas and anchors: O(records + merged).

    Args:
        records: the log's, ascending.
        have: the version that the reader holds; None if it cannot tell.
        unreadable: nonces of uploads that the reader failed to read, and ORIGIN_NONCE if it lacks the directory.
    Returns:
        None if there is no path, or if the reader holds head.
    """
    if not records or have == records[-1].version:
        return None
    reached: dict[int, _Way] = {}
    if have is not None and (have == records[0].base or have in {record.version for record in records}):
        reached[have] = _Way((0, False, 0), None, None)
    for record in records:
        ways = [way for way in [reached.get(record.version)] if way is not None]
        if _starts(record, unreadable):
            start = record if record.anchor is None else _readable(record, unreadable)
            num_bytes = 0 if start.anchor is None else start.anchor.num_bytes
            ways.append(_Way((num_bytes, True, 0), start, None))
        for hop in hops(record):
            if hop.delta is None or hop.base is None:
                continue
            if hop.delta.nonce not in unreadable and (before := reached.get(hop.base)) is not None:
                num_bytes, is_whole, num_hops = before.cost
                ways.append(_Way((num_bytes + hop.delta.num_bytes, is_whole, num_hops + 1), before, hop))
        if ways:
            reached[record.version] = min(ways, key=lambda way: way.cost)
    last = reached.get(records[-1].version)
    return None if last is None else last.path()


def up_to(
    version: int, records: Sequence[VersionRecord], have: int | None, unreadable: Collection[str] = ()
) -> Sequence[VersionRecord]:
    """The records that end at `version`, for a reader that is to stay there.

    Returns:
        All of them, if the reader is past it already, or if nothing leads there: it goes on to head.
    """
    if have is not None and have > version:
        return records
    wanted = [record for record in records if record.version <= version]
    is_there = bool(wanted) and wanted[-1].version == have
    return wanted if is_there or path(wanted, have, unreadable) is not None else records


def hops(record: VersionRecord) -> Iterator[VersionRecord]:
    """The deltas that end at a version, each as a record on its own base: the version's, and merged ones."""
    if record.delta is not None:
        yield record
    yield from (record.by(merged) for merged in record.merged)


@dataclass(frozen=True)
class _Way:
    """The cheapest way to a version that was found: what it begins with, or the way before and the last hop.

    cost: bytes; then, of equals, what leaves most of the engine's words alone, then what has fewer parts to ask for.
    """

    cost: tuple[int, bool, int]
    before: "_Way | VersionRecord | None"
    hop: VersionRecord | None

    def path(self) -> Path:
        deltas: list[VersionRecord] = []
        way: _Way | VersionRecord | None = self
        while isinstance(way, _Way):
            if way.hop is not None:
                deltas.append(way.hop)
            way = way.before
        return Path(way, tuple(reversed(deltas)))


def anchor_due(records: Sequence[VersionRecord], interval: int, model_bytes: int) -> bool:
    """Should the head get an anchor: `interval` versions after the last whole one, or when the chain outweighs it?"""
    since: list[VersionRecord] = []
    for record in reversed(records):
        if record.whole:
            break
        since.append(record)
    weight = sum(record.delta.num_bytes for record in since if record.delta is not None)
    return len(since) >= interval or weight > model_bytes


@dataclass(frozen=True)
class Sweep:
    """What may go: records with all their uploads; anchors and merged deltas, as (base, version), beside others."""

    versions: tuple[int, ...]
    anchors: tuple[int, ...]
    merged: tuple[tuple[int, int], ...]
    uploads: tuple[Upload, ...]


def sweep(
    records: Sequence[VersionRecord], held: Collection[int], keep_deltas: int, pinned: int | None = None
) -> Sweep:
    """What nobody needs: older than the newest committed anchor, than what a living server reads next, than the newest
    deltas; and merged deltas that no living server can come by.

    Args:
        records: the log's, ascending.
        held: versions that living servers acknowledged.
        keep_deltas: changes of this many newest versions stay in any case.
        pinned: a version that a server is to stay at: what leads there from the last whole one before it stays, for a
            new life of that server, too.
    """
    floor, newest = 0, None
    starts = [i for i, record in enumerate(records) if pinned is not None and record.version <= pinned and record.whole]
    behind = {i: path(_unmerged(records), r.version) for i, r in enumerate(records) if r.version in held}
    anchors = [i for i, record in enumerate(records) if record.anchor is not None]
    if anchors:
        newest = anchors[-1]
        # A server that would rather load the anchor holds nothing back, merged deltas or not: one that hangs must not
        # keep the log growing.
        living = [i for i, way in behind.items() if way is not None and way.start is None]
        floor = max(0, min([newest, len(records) - 1 - keep_deltas, *living, *starts[-1:]]))
    gone, stay = records[:floor], records[floor:]
    older = [records[i] for i in anchors if floor <= i < (newest or 0) and i not in starts[-1:]]
    begun = [records[i].version for i in behind if i >= floor]
    unused = [m for record in stay for m in record.merged if not any(version <= m.base for version in begun)]
    uploads = [upload for record in gone for upload in record.uploads()]
    uploads += [record.anchor for record in older if record.anchor is not None]
    uploads += [merged.upload for merged in unused]
    return Sweep(
        tuple(r.version for r in gone),
        tuple(r.version for r in older),
        tuple((merged.base, merged.version) for merged in unused),
        tuple(uploads),
    )


def _unmerged(records: Sequence[VersionRecord]) -> list[VersionRecord]:
    return [replace(record, merged=()) if record.merged else record for record in records]


def _starts(record: VersionRecord, unreadable: Collection[str]) -> bool:
    if record.anchor is not None and record.anchor.nonce not in unreadable:
        return True
    return record.version == ORIGIN and record.model_dir is not None and ORIGIN_NONCE not in unreadable


def _readable(record: VersionRecord, unreadable: Collection[str]) -> VersionRecord:
    """The record as a start: with its anchor, or as the directory that it also is."""
    assert record.anchor is not None
    directory = record.model_dir is not None and ORIGIN_NONCE not in unreadable
    return record.with_anchor(None) if directory or record.anchor.nonce in unreadable else record
