"""The ledger of a checkpoint: what it names, and how it is made from books that may have lost their tail."""

import json

import pytest

from buffer.books import Books, Card
from buffer.lineage import Ledger, ledger_of


def books(*, watermark: int = 0, next_ordinal: int = 0, **states: list[int]) -> Books:
    """Books with ordinals in states, by name."""
    made = Books(branch=2, watermark=watermark, next_ordinal=next_ordinal, forks={1: (0, 0), 2: (1, 5)})
    for state, ordinals in states.items():
        for ordinal in ordinals:
            if state in made.closed:
                made.closed[state].add(ordinal)
            else:
                made.cards[ordinal] = Card(state)
                if state == "dead":
                    made.dead[ordinal] = 0
    return made


def test_the_watermark_stops_at_the_smallest_open_ordinal() -> None:
    found = ledger_of(books(next_ordinal=6, leased=[0, 1, 3], ready=[2], waiting=[4, 5]), Ledger(), 7, [0, 1, 3])
    assert (found.branch, found.number, found.watermark) == (2, 7, 2)
    assert found.closed == {"consumed": (3,), "filtered": (), "discarded": ()}
    assert found.below == {"consumed": 2, "filtered": 0, "discarded": 0}
    assert [o for o in range(6) if found.names(o)] == [0, 1, 3]


def test_a_leased_group_that_was_not_trained_stays_open() -> None:
    found = ledger_of(books(next_ordinal=3, leased=[0, 1, 2]), Ledger(), 1, [0])
    assert found.watermark == 1
    assert not found.names(1)


def test_a_dead_ordinal_does_not_hold_the_watermark() -> None:
    found = ledger_of(books(next_ordinal=4, leased=[0, 2], dead=[1], filtered=[3]), Ledger(), 1, [0, 2])
    assert (found.watermark, found.dead) == (4, (1,))
    assert not found.names(1)
    assert found.below == {"consumed": 2, "filtered": 1, "discarded": 0}


def test_a_dead_ordinal_that_was_played_again_is_reopened_and_then_counted() -> None:
    base = Ledger(watermark=4, below={"consumed": 3, "filtered": 0, "discarded": 0}, dead=(1,))
    found = ledger_of(books(watermark=4, next_ordinal=5, waiting=[1, 4]), base, 1, [])
    assert (found.watermark, found.dead, found.reopened) == (4, (), (1,))
    assert not found.names(1)
    after = ledger_of(books(watermark=4, next_ordinal=5, leased=[1], waiting=[4]), found, 2, [1])
    assert (after.watermark, after.reopened) == (4, ())
    assert after.below["consumed"] == 4
    assert after.names(1)


def test_what_the_lineage_has_closed_stays_closed_whatever_a_store_without_its_tail_believes() -> None:
    base = Ledger(
        branch=2,
        watermark=4,
        closed={"consumed": (6,), "filtered": (5,), "discarded": ()},
        below={"consumed": 4, "filtered": 0, "discarded": 0},
    )
    lost = books(watermark=0, next_ordinal=5, ready=[0, 3], in_flight=[4], consumed=[1, 2])
    found = ledger_of(lost, base, 9, [])
    assert found.watermark == 4, "4 is open"
    assert (found.closed["consumed"], found.closed["filtered"]) == ((6,), (5,))
    assert found.below == base.below


def test_old_trained_ordinals_do_no_harm() -> None:
    base = Ledger(watermark=2, below={"consumed": 2, "filtered": 0, "discarded": 0})
    found = ledger_of(books(watermark=2, next_ordinal=3, leased=[2]), base, 3, [0, 1, 2])
    assert found.below == {"consumed": 3, "filtered": 0, "discarded": 0}


def test_the_ledger_survives_json() -> None:
    found = ledger_of(
        books(next_ordinal=6, leased=[0, 3], dead=[1], waiting=[2], filtered=[4], discarded=[5]), Ledger(), 7, [0, 3]
    )
    assert Ledger.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_ledger_of_another_major_version_is_refused() -> None:
    with pytest.raises(ValueError, match="schema 2, this version reads 1"):
        Ledger.from_json({**Ledger().to_json(), "schema": 2})
