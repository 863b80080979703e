"""Which parts lead from what a reader holds to head, when an anchor is due, and what may be deleted. Pure.

Records come from the log in ascending order; each one's base is the record before it, also where a new branch goes
back, so the chain is a line although versions form a tree.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from weightsync.log.records import Upload, VersionRecord
from weightsync.versions import ORIGIN

ORIGIN_NONCE = "model directory"
"""What stands for the model directory among unreadable uploads."""


@dataclass(frozen=True)
class Path:
    """What to read: a whole version unless the reader holds the first delta's base, then deltas in order."""

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
        anchor = self.start.anchor if self.start is not None else None
        changes = sum(record.delta.num_bytes for record in self.deltas if record.delta is not None)
        return changes + (anchor.num_bytes if anchor is not None else 0)

    def of_one_plan(self) -> "Path":
        """The longest beginning whose uploads were cut by one plan: what can be folded bucket by bucket.

        The plan changes when the trainer resumes on another number of ranks; a reader then takes two steps.
        """
        plans = [record.delta.plan for record in self.deltas if record.delta is not None]
        if self.start is not None and self.start.anchor is not None:
            plans.insert(0, self.start.anchor.plan)
        same = next((i for i, plan in enumerate(plans) if plan != plans[0]), len(plans))
        return replace(self, deltas=self.deltas[: same - (len(plans) - len(self.deltas))])


def path(records: Sequence[VersionRecord], have: int | None, unreadable: Collection[str] = ()) -> Path | None:
    """The path to head that brings the fewest bytes.

    Args:
        records: the log's, ascending.
        have: the version that the reader holds; None if it cannot tell.
        unreadable: nonces of uploads that the reader failed to read, and ORIGIN_NONCE if it lacks the directory.
    Returns:
        None if there is no path, or if the reader holds head.
    """
    if not records or have == records[-1].version:
        return None
    candidates: list[tuple[VersionRecord | None, int]] = []
    for i, record in enumerate(records):
        if _starts(record, unreadable):
            candidates.append((record if record.anchor is None else _readable(record, unreadable), i + 1))
    places = {record.version: i + 1 for i, record in enumerate(records)}
    first_base = records[0].base
    if have is not None and (have in places or have == first_base):
        candidates.append((None, places.get(have, 0)))
    paths = [
        Path(start, tuple(records[at:]))
        for start, at in candidates
        if all(record.delta is not None and record.delta.nonce not in unreadable for record in records[at:])
        and (start is not None or at < len(records))
    ]
    # Of equals, the one that leaves most of the engine's words alone, then the one with fewer parts to ask for.
    return min(paths, key=lambda p: (p.num_bytes, p.start is not None, len(p.deltas)), default=None)


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
    """What may go: records with all their uploads, and anchors beside records that stay."""

    versions: tuple[int, ...]
    anchors: tuple[int, ...]
    uploads: tuple[Upload, ...]


def sweep(records: Sequence[VersionRecord], held: Collection[int], keep_deltas: int) -> Sweep:
    """What nobody needs: older than the newest committed anchor, than what a living server reads next, than the newest
    deltas.

    Args:
        records: the log's, ascending.
        held: versions that living servers acknowledged.
        keep_deltas: changes of this many newest versions stay in any case.
    """
    anchors = [i for i, record in enumerate(records) if record.anchor is not None]
    if not anchors:
        return Sweep((), (), ())
    newest = anchors[-1]
    # A server that would rather load the anchor holds nothing back: one that hangs must not keep the log growing.
    behind = {i: path(records, record.version) for i, record in enumerate(records) if record.version in held}
    living = [i for i, way in behind.items() if way is not None and way.start is None]
    floor = max(0, min([newest, len(records) - 1 - keep_deltas, *living]))
    gone = records[:floor]
    older = [records[i] for i in anchors if floor <= i < newest]
    uploads = [upload for record in gone for upload in record.uploads()]
    uploads += [record.anchor for record in older if record.anchor is not None]
    return Sweep(tuple(r.version for r in gone), tuple(r.version for r in older), tuple(uploads))


def _starts(record: VersionRecord, unreadable: Collection[str]) -> bool:
    if record.anchor is not None and record.anchor.nonce not in unreadable:
        return True
    return record.version == ORIGIN and record.model_dir is not None and ORIGIN_NONCE not in unreadable


def _readable(record: VersionRecord, unreadable: Collection[str]) -> VersionRecord:
    """The record as a start: with its anchor, or as the directory that it also is."""
    assert record.anchor is not None
    directory = record.model_dir is not None and ORIGIN_NONCE not in unreadable
    return record.with_anchor(None) if directory or record.anchor.nonce in unreadable else record
