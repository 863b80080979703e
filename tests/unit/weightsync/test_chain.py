"""Paths to head, when an anchor is due, what may be swept: against every small history."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightsync.chain import ORIGIN_NONCE, anchor_due, path, sweep
from weightsync.log.records import Part, Upload, VersionRecord
from weightsync.versions import label, pack


def upload(version: int, base: int, nonce: str, num_bytes: int, plan: str = "p") -> Upload:
    return Upload(version, base, nonce, plan, (Part(0, 0, num_bytes),))


def history(
    length: int, anchors: tuple[int, ...] = (), *, delta_bytes: int = 10, anchor_bytes: int = 100, plans: str = ""
) -> list[VersionRecord]:
    """The origin and versions 1.1 ... 1.n, some with an anchor beside them."""
    records = [VersionRecord(0, None, "o", "layout", 1, model_dir="/m")]
    for number in range(1, length):
        version, base = pack(1, number), records[-1].version
        plan = plans[number - 1] if plans else "p"
        anchor = upload(version, version, f"a{number}", anchor_bytes, plan) if number in anchors else None
        delta = upload(version, base, f"d{number}", delta_bytes, plan)
        records.append(VersionRecord(version, base, f"d{number}", "layout", number, delta, anchor=anchor))
    return records


def numbers(records: tuple[VersionRecord, ...]) -> list[int]:
    return [record.version & 0xFFFFFFFF for record in records]


def test_a_reader_of_head_or_of_an_empty_log_has_nothing_to_do() -> None:
    records = history(3)
    assert path(records, records[-1].version) is None
    assert path([], None) is None


def test_a_reader_a_little_behind_takes_the_deltas_it_lacks() -> None:
    found = path(history(6, anchors=(4,)), pack(1, 3))
    assert found is not None
    assert found.start is None
    assert numbers(found.deltas) == [4, 5]
    assert found.num_bytes == 20


def test_a_reader_far_behind_takes_the_anchor_when_that_is_fewer_bytes() -> None:
    found = path(history(30, anchors=(25,)), pack(1, 2))
    assert found is not None
    assert found.start is not None
    assert found.start.version == pack(1, 25)
    assert numbers(found.deltas) == [26, 27, 28, 29]


def test_a_reader_that_holds_nothing_starts_whole() -> None:
    found = path(history(4), None)
    assert found is not None
    assert found.start is not None
    assert found.start.model_dir == "/m"
    assert path(history(4), None, {ORIGIN_NONCE}) is None


def test_a_version_that_the_log_never_had_counts_as_nothing_held() -> None:
    found = path(history(4), pack(7, 7))
    assert found is not None
    assert found.start is not None


def test_the_base_of_the_oldest_record_is_a_place_to_go_on_from() -> None:
    """B050: what was pruned is not replayed over."""
    records = history(8, anchors=(4,))[4:]
    found = path(records, pack(1, 3))
    assert found is not None
    assert found.start is None
    assert numbers(found.deltas) == [4, 5, 6, 7]
    # One before it is not: replaying what was pruned would skip versions.
    late = path(records, pack(1, 2))
    assert late is not None
    assert late.start is not None
    assert path(history(8)[4:], pack(1, 2)) is None


@pytest.mark.parametrize("unreadable", [{"d3"}, {"a4"}, {"d3", "a4"}, {"d5"}, {"a4", ORIGIN_NONCE}])
def test_unreadable_uploads_are_gone_around_or_there_is_no_path(unreadable: set[str]) -> None:
    found = path(history(6, anchors=(4,)), pack(1, 2), unreadable)
    if "d5" in unreadable or {"d3", "a4"} <= unreadable:
        assert found is None
        return
    assert found is not None
    used = {record.delta.nonce for record in found.deltas if record.delta is not None}
    if found.start is not None and found.start.anchor is not None:
        used.add(found.start.anchor.nonce)
    assert not used & unreadable


def test_an_origin_with_an_anchor_is_read_from_the_directory_unless_that_is_wrong() -> None:
    records = history(2)
    records[0] = records[0].with_anchor(upload(0, 0, "a0", 100))
    for unreadable, from_directory in (((), True), ({ORIGIN_NONCE}, False), ({"a0"}, True)):
        found = path(records, None, set(unreadable))
        assert found is not None
        assert found.start is not None
        assert (found.start.anchor is None) is from_directory


@pytest.mark.parametrize(
    ("plans", "have", "expected"),
    [("aaabb", 0, [1, 2, 3]), ("aaabb", 3, [4, 5]), ("aabbb", None, [1, 2]), ("aaaab", 0, [1, 2, 3, 4])],
)
def test_a_path_is_cut_where_the_trainer_changed_its_ranks(plans: str, have: int | None, expected: list[int]) -> None:
    found = path(history(6, plans=plans), pack(1, have) if have else have)
    assert found is not None
    assert numbers(found.of_one_plan().deltas) == expected


def test_an_anchor_of_another_plan_is_a_step_of_its_own() -> None:
    found = path(history(6, anchors=(3,), plans="aaabb", anchor_bytes=1), None, {ORIGIN_NONCE})
    assert found is not None
    step = found.of_one_plan()
    assert step.target.version == pack(1, 3)
    assert step.deltas == ()


@given(
    length=st.integers(1, 12),
    anchors=st.sets(st.integers(1, 11)),
    have=st.integers(0, 11) | st.none(),
    delta_bytes=st.integers(1, 60),
)
def test_every_path_leads_to_head_without_a_gap_and_none_is_cheaper(
    length: int, anchors: set[int], have: int | None, delta_bytes: int
) -> None:
    records = history(length, tuple(anchors), delta_bytes=delta_bytes)
    held = None if have is None else (pack(1, have) if have else 0)
    found = path(records, held)
    if held == records[-1].version:
        assert found is None
        return
    assert found is not None
    at = held if found.start is None else found.start.version
    for record in found.deltas:
        assert record.base == at
        at = record.version
    assert at == records[-1].version
    costs = [
        (len(records) - 1 - i) * delta_bytes + (100 if r.anchor and i else 0) for i, r in enumerate(records) if r.whole
    ]
    costs += [(len(records) - 1 - i) * delta_bytes for i, r in enumerate(records) if r.version == held]
    assert found.num_bytes == min(costs)


def test_an_anchor_is_due_every_interval_and_when_the_chain_outweighs_the_model() -> None:
    assert not anchor_due(history(4), 4, 1000)
    assert anchor_due(history(5), 4, 1000)
    assert not anchor_due(history(8, anchors=(4,)), 4, 1000)
    assert anchor_due(history(9, anchors=(4,)), 4, 1000)
    assert anchor_due(history(4), 100, 29)
    assert not anchor_due(history(4), 100, 30)
    assert not anchor_due([], 4, 1000)


@given(
    length=st.integers(1, 14),
    anchors=st.sets(st.integers(1, 13)),
    held=st.sets(st.integers(0, 13)),
    keep=st.integers(0, 6),
)
def test_after_a_sweep_every_living_server_and_every_joiner_still_has_a_path(
    length: int, anchors: set[int], held: set[int], keep: int
) -> None:
    records = history(length, tuple(anchors))
    living = {pack(1, number) if number else 0 for number in held}
    gone = sweep(records, living, keep)
    left = [
        record.with_anchor(None) if record.version in gone.anchors else record
        for record in records
        if record.version not in gone.versions
    ]
    deleted = {u.nonce for u in gone.uploads}
    assert left[-1].version == records[-1].version
    assert not deleted & {u.nonce for record in left for u in record.uploads()}
    for have in [*(v for v in living if v in {r.version for r in records}), None]:
        if have != left[-1].version:
            found = path(left, have)
            assert found is not None
            if have is not None and found.start is None:
                assert not deleted & {r.delta.nonce for r in found.deltas if r.delta}
    newest = [record for record in left if record.anchor is not None][-1:]
    assert [r.version for r in newest] == [r.version for r in records if r.anchor is not None][-1:]
    kept = sum(record.delta is not None for record in left)
    assert kept >= min(keep, length - 1)


def test_a_sweep_without_an_anchor_deletes_nothing() -> None:
    assert sweep(history(50), set(), 0).versions == ()


def test_a_sweep_drops_older_anchors_beside_records_that_stay() -> None:
    gone = sweep(history(10, anchors=(3, 8)), {pack(1, 2)}, 0)
    assert gone.versions == (0, pack(1, 1))
    assert gone.anchors == (pack(1, 3),)
    assert [u.nonce for u in gone.uploads] == ["d1", "a3"]


def test_labels_name_branch_and_number() -> None:
    assert [label(v) for v in (0, pack(3, 41), None)] == ["0.0", "3.41", "none"]
    for branch, number in itertools.product((-1, 1 << 32), (0,)):
        with pytest.raises(ValueError, match="32 bits"):
            pack(branch, number)
