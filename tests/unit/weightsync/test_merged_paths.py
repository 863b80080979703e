"""Merged deltas along the chain: the cheapest path over them, against every path there is, and when they go."""

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.weightsync.test_chain import history, numbers, upload
from weightsync.chain import ORIGIN_NONCE, hops, path, sweep
from weightsync.log.records import MergedDelta, VersionRecord
from weightsync.versions import pack


def at(number: int) -> int:
    return pack(1, number) if number else 0


def with_merged(records: list[VersionRecord], *spans: tuple[int, int, int]) -> list[VersionRecord]:
    """The records with merged deltas of these (base, version, bytes)."""
    found = []
    for number, record in enumerate(records):
        deltas = [
            MergedDelta(upload(at(end), at(base), f"m{base}-{end}", num_bytes), (), 3)
            for base, end, num_bytes in sorted(set(spans))
            if end == number
        ]
        found.append(VersionRecord(**{**record.__dict__, "merged": tuple(deltas)}))
    return found


def test_a_server_behind_takes_one_merged_delta_when_that_is_smaller_and_the_deltas_when_not() -> None:
    for num_bytes, expected in ((39, [5]), (41, [2, 3, 4, 5])):
        found = path(with_merged(history(6), (1, 5, num_bytes)), at(1))
        assert found is not None
        assert found.start is None
        assert numbers(found.deltas) == expected
        assert found.num_bytes == min(num_bytes, 40)


def test_a_merged_delta_reads_as_a_version_on_its_own_base() -> None:
    (_, hop) = hops(with_merged(history(4), (1, 3, 15))[3])
    assert (hop.base, hop.version, hop.digest, hop.num_changed, hop.unchanged) == (at(1), at(3), 3, 3, ())
    assert hop.delta is not None
    assert hop.delta.nonce == "m1-3"
    assert not hop.whole


def test_a_joiner_comes_by_a_merged_delta_from_where_it_can_start() -> None:
    found = path(with_merged(history(9, anchors=(3,)), (4, 8, 11)), None, {ORIGIN_NONCE})
    assert found is not None
    assert found.start is not None
    assert numbers(found.deltas) == [4, 8]


def test_an_unreadable_merged_delta_is_gone_around() -> None:
    found = path(with_merged(history(6), (1, 5, 5)), at(1), {"m1-5"})
    assert found is not None
    assert numbers(found.deltas) == [2, 3, 4, 5]


def test_a_record_that_is_not_on_the_line_is_no_step() -> None:
    """What a flip left that died before head moved must not be read between two versions of the line."""
    records = history(4)
    ghost = VersionRecord(pack(1, 1) + 0, 0, "g", "layout", 9, upload(pack(1, 1), 0, "g", 1))
    line = [records[0], ghost, VersionRecord(pack(2, 0), 0, "n", "layout", 7, upload(pack(2, 0), 0, "n", 10))]
    found = path(line, 0)
    assert found is not None
    assert [record.nonce for record in found.deltas] == ["n"]


def every_cost(records: list[VersionRecord], have: int | None, unreadable: set[str]) -> Iterator[int]:
    """Bytes of every path to head, by trying all of them backwards."""

    def before(version: int) -> Iterator[int]:
        if version == have:
            yield 0
        for record in records:
            if record.version != version:
                continue
            if record.anchor is not None and record.anchor.nonce not in unreadable:
                yield record.anchor.num_bytes
            if record.model_dir is not None and ORIGIN_NONCE not in unreadable:
                yield 0
            for delta in (record.delta, *(merged.upload for merged in record.merged)):
                if delta is not None and delta.nonce not in unreadable:
                    yield from (cost + delta.num_bytes for cost in before(delta.base))

    yield from before(records[-1].version)


@given(data=st.data(), length=st.integers(2, 9), first=st.integers(0, 3), anchors=st.sets(st.integers(1, 8)))
def test_no_path_over_deltas_merged_deltas_and_anchors_is_cheaper(
    data: st.DataObject, length: int, first: int, anchors: set[int]
) -> None:
    spans = st.tuples(st.integers(0, length - 2), st.integers(2, length), st.integers(1, 60))
    drawn = [span for span in data.draw(st.lists(spans, max_size=6)) if span[0] + 1 < span[1]]
    records = with_merged(history(length, tuple(anchors)), *{span[:2]: span for span in drawn}.values())[first:] or []
    if not records:
        return
    nonces = [found.nonce for record in records for found in record.uploads()]
    unreadable = data.draw(st.sets(st.sampled_from([*nonces, ORIGIN_NONCE]), max_size=4))
    have = data.draw(st.none() | st.sampled_from([*range(length), 77]).map(at))
    known = {record.version for record in records} | {records[0].base}
    found = path(records, have, unreadable)
    costs = (
        [] if have == records[-1].version else list(every_cost(records, have if have in known else None, unreadable))
    )
    assert (None if found is None else found.num_bytes) == min(costs, default=None)
    if found is None:
        return
    reached = have if found.start is None else found.start.version
    for hop in found.deltas:
        assert hop.delta is not None
        assert (hop.base, hop.delta.base, hop.delta.version) == (reached, reached, hop.version)
        assert hop.delta.nonce not in unreadable
        reached = hop.version
    assert reached == records[-1].version


def test_a_merged_delta_stays_while_a_living_server_may_come_by_it() -> None:
    records = with_merged(history(10, anchors=(1,)), (2, 6, 9), (4, 8, 9))
    for held, gone in (({2}, ()), ({3}, ((2, 6),)), ({1}, ()), ({9}, ((2, 6), (4, 8))), (set(), ((2, 6), (4, 8)))):
        found = sweep(records, {at(number) for number in held}, 100)
        assert tuple((base & 0xFF, version & 0xFF) for base, version in found.merged) == gone
        assert [u.nonce for u in found.uploads if u.nonce[0] == "m"] == [f"m{b}-{v}" for b, v in gone]


def test_a_merged_delta_does_not_let_a_server_that_hangs_hold_the_log() -> None:
    """By deltas it would rather load the anchor; that one merged delta is cheaper keeps nothing."""
    records = with_merged(history(30, anchors=(25,)), (2, 29, 9))
    found = sweep(records, {at(2)}, 0)
    assert len(found.versions) == 25
    assert "m2-29" in {u.nonce for u in found.uploads}


@given(data=st.data(), length=st.integers(2, 12), anchors=st.sets(st.integers(1, 11)), held=st.sets(st.integers(0, 11)))
def test_after_a_sweep_the_living_read_nothing_that_is_gone(
    data: st.DataObject, length: int, anchors: set[int], held: set[int]
) -> None:
    spans = st.tuples(st.integers(0, length - 2), st.integers(2, length), st.integers(1, 40))
    drawn = [span for span in data.draw(st.lists(spans, max_size=5)) if span[0] + 1 < span[1] < length]
    records = with_merged(history(length, tuple(anchors)), *{span[:2]: span for span in drawn}.values())
    gone = sweep(records, {at(number) for number in held}, data.draw(st.integers(0, 3)))
    left = []
    for record in records:
        if record.version not in gone.versions:
            kept = tuple(m for m in record.merged if (m.base, m.version) not in gone.merged)
            anchor = None if record.version in gone.anchors else record.anchor
            left.append(VersionRecord(**{**record.__dict__, "merged": kept, "anchor": anchor}))
    deleted = {u.nonce for u in gone.uploads}
    assert deleted == {u.nonce for r in records for u in r.uploads()} - {u.nonce for r in left for u in r.uploads()}
    for number in [*held, None]:
        have = None if number is None else at(number)
        if have == left[-1].version or (number is not None and number >= length):
            continue
        found = path(left, have)
        assert found is not None
        if have in {r.version for r in left}:
            whole = path(records, have)
            assert whole is not None
            assert found.num_bytes <= whole.num_bytes or whole.start is not None
