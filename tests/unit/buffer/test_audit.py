"""The audit finds what is out of order: each kind of damage is a problem with the ordinal in it."""

from collections.abc import Callable

import pytest

from buffer.audit import audit_of
from buffer.books import Books
from tests.support.buffer_run import BufferRun


def sound() -> Books:
    """Books with an ordinal in most states."""
    run = BufferRun(None).recover(limit=3, per_version=2)
    run.make(3)
    run.lease()
    claims = run.claims()[:3]
    run.buffer.fail(claims[0], "reward_failed", "boom")
    run.buffer.renew(claims[1], run.version())
    for _ in range(2):
        run.buffer.fail(run.claim(), "reward_failed")
    return run.buffer._store.books()


def test_sound_books_have_no_problem_and_add_up() -> None:
    audit = audit_of("r", sound(), None)
    assert audit.ok, audit.problems
    assert sum(n for state, n in audit.identity.items() if state != "next_ordinal") == audit.identity["next_ordinal"]
    assert audit.by_reason["reward_failed"] == 3
    assert audit.to_json()["ok"] is True


def first(ordinals: object) -> int:
    return next(iter(ordinals))  # type: ignore[call-overload,no-any-return]  # any collection of ordinals


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: b.ready.clear(), "by its card, but not in that set"),
        (lambda b: b.leased.update({99: 1}), "ordinal 99 is in leased, its card says otherwise"),
        (lambda b: b.open.discard(first(b.ready)), "`open` is not the union"),
        (lambda b: b.claims.clear(), "not one token for each ordinal in flight"),
        (lambda b: b.sampling.update({99: 1}), "names an ordinal of another state"),
        (lambda b: setattr(b, "resident_bytes", 1), "resident_bytes = 1, the cards add up to"),
        (lambda b: setattr(b, "next_ordinal", b.next_ordinal + 1), "next_ordinal ="),
        (lambda b: b.closed["consumed"].add(first(b.ready)), "is consumed and has a card"),
        (lambda b: b.closed["filtered"].update({777}), "ordinal 777 is not below next_ordinal"),
        (lambda b: setattr(b.cards[first(b.ready)], "key", ""), "is ready without a payload"),
    ],
)
def test_damage_is_found_and_named(damage: Callable[[Books], object], message: str) -> None:
    books = sound()
    damage(books)
    audit = audit_of("r", books, None)
    assert not audit.ok
    assert any(message in problem for problem in audit.problems), audit.problems


def test_a_payload_that_is_gone_or_damaged_is_found_when_it_is_asked_for() -> None:
    run = BufferRun(None).recover(limit=0, per_version=2)
    run.make(2)
    one, other = run.lease()
    run.buffer._payloads.delete([one.key, other.key])
    run.buffer._payloads.put(other.key, b"hello")
    assert run.buffer.audit().ok
    audit = run.buffer.audit(payloads=True)
    assert [("gone" in p, "xxh3" in p) for p in audit.problems] == [(True, False), (False, True)]
