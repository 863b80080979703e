"""A server that is to stay at a version: how far it is brought, and what the sweep leaves it. Every small history."""

import itertools

import pytest

from tests.unit.weightsync.test_chain import history
from weightsync.chain import path, sweep, up_to
from weightsync.versions import pack

V2, V4 = pack(1, 2), pack(1, 4)


def last(records):
    return records[-1].version


def test_a_reader_before_the_version_is_brought_there_and_no_further():
    records = history(7)
    assert last(up_to(V4, records, V2)) == V4
    assert last(up_to(V4, records, V4)) == V4
    assert last(up_to(V4, records, None)) == V4, "a new life, which starts whole"


def test_before_the_version_is_published_it_follows_head():
    assert last(up_to(V4, history(3), pack(1, 1))) == V2


def test_one_that_is_past_it_does_not_go_back_and_one_that_cannot_get_there_goes_on():
    records = history(7, anchors=(5,))
    assert last(up_to(V2, records, V4)) == last(records)
    pruned = records[5:]
    assert last(up_to(V2, pruned, None)) == last(records)
    assert last(up_to(V2, [], None) or records) == last(records)


@pytest.mark.parametrize("length", [3, 5, 6])
def test_no_sweep_takes_away_what_leads_to_the_version(length):
    """Whatever has an anchor, whoever holds what, in this life or in the next: the pinned server gets there."""
    numbers = range(1, length)
    for size in (0, 1, 2):
        for anchors in itertools.combinations(numbers, size):
            records = history(length, anchors=anchors, anchor_bytes=1)
            for pinned, held in itertools.product(numbers, range(length)):
                version, have = pack(1, pinned), pack(1, held) if held else 0
                gone = sweep(records, {have, last(records)}, 0, version)
                left = [
                    r.with_anchor(None) if r.version in gone.anchors else r
                    for r in records
                    if r.version not in gone.versions
                ]
                wanted = up_to(version, left, None)
                assert last(wanted) == version, "a new life of the server"
                assert path(wanted, None) is not None
                if held <= pinned:
                    assert last(up_to(version, left, have)) == version


def test_without_a_pin_the_sweep_is_as_it_was_and_with_one_it_keeps_no_more_than_it_needs():
    records = history(9, anchors=(3, 6))
    head = {last(records)}
    assert [v & 0xFFFFFFFF for v in sweep(records, head, 0).versions] == [0, 1, 2, 3, 4, 5]
    pinned = sweep(records, head, 0, pack(1, 4))
    assert [v & 0xFFFFFFFF for v in pinned.versions] == [0, 1, 2]
    assert pinned.anchors == ()


def test_an_unreadable_delta_before_the_version_lets_the_reader_go_on_to_head():
    records = history(7, anchors=(5,))
    assert last(up_to(V4, records, V2, {"d4"})) == last(records)
