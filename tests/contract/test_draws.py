"""Prompts that are drawn by results: the draw is recorded with the reserve, and every later attempt reads it."""

import pytest

from buffer import Claim, Draw, NotAdmitted, PassRate
from buffer.draws import MAX_REASON, MOST_OFFERED
from buffer.errors import BufferError
from tests.contract.conftest import NewRun
from tests.support.buffer_run import BufferRun
from tests.support.groups import group_for


def offers(*positions: int, reason: str = "because") -> tuple[Draw, ...]:
    return tuple(Draw(position, 100 + position, reason) for position in positions)


def drawn(run: BufferRun, *positions: int) -> Claim:
    claim = run.buffer.reserve("w", offers(*positions))
    assert isinstance(claim, Claim), claim
    return claim


def test_the_first_position_that_nobody_has_passed_is_drawn_with_its_prompt_and_reason(new_run: NewRun) -> None:
    run = new_run().recover(per_version=8)
    assert drawn(run, 0, 3).draw == Draw(0, 100, "because")
    assert drawn(run, 0, 3, 4).draw == Draw(3, 103, "because")
    assert drawn(run, 1, 2, 3, 9).draw == Draw(9, 109, "because")
    run.audit()


def test_who_offers_only_what_others_have_passed_is_told_where_to_go_on(new_run: NewRun) -> None:
    run = new_run().recover(per_version=8)
    drawn(run, 7)
    refused = run.buffer.reserve("slow", offers(3, 5, 7))
    assert isinstance(refused, NotAdmitted)
    assert (refused.reason, refused.next_position) == ("draw", 8)
    assert drawn(run, 8).ordinal == 1
    assert run.audit() == {}, "to offer again is no denial"


@pytest.mark.parametrize("how", ["fails", "abandons", "dies"])
def test_the_next_owner_of_an_ordinal_gets_the_draw_of_the_first(new_run: NewRun, how: str) -> None:
    run = new_run().recover(per_version=8)
    first = drawn(run, 5)
    if how == "fails":
        run.buffer.fail(first, "reward_failed", "boom")
    elif how == "abandons":
        run.buffer.abandon(first)
    else:
        run.passes(seconds=61)
        assert run.buffer.sweep().expired == (0,)
    again = run.buffer.reserve("other", offers(6, 7, reason="another view"))
    assert isinstance(again, Claim)
    assert (again.ordinal, again.attempt, again.draw) == (0, 2, first.draw)
    without = drawn(run, 6)
    assert (without.ordinal, without.draw) == (1, Draw(6, 106, "because"))


def test_a_resume_reads_the_draws_of_groups_that_it_plays_again(new_run: NewRun) -> None:
    run = new_run().recover(per_version=2)
    claims = [drawn(run, 4), drawn(run, 6)]
    for claim in claims:
        run.buffer.put(claim, group_for(claim, run.version()))
    early = run.checkpoint([], commit=False)
    run.train()
    run.recover(ledger=early, per_version=2)
    run.set(max_attempts=2)
    run.lease()
    run.buffer.give_back(run.branch, [0, 1], "corrupt_payload")
    again = [run.claim(), run.claim()]
    assert [(claim.ordinal, claim.draw) for claim in again] == [(claim.ordinal, claim.draw) for claim in claims]


def test_a_fresh_ledger_goes_on_behind_the_ordinals_of_its_checkpoint(new_run: NewRun) -> None:
    run = new_run().recover(per_version=2)
    run.make(2)
    ledger = run.checkpoint(run.train())
    other = new_run().recover(ledger=ledger, per_version=2, number=run.number)
    refused = other.buffer.reserve("w", offers(0, 1))
    assert isinstance(refused, NotAdmitted)
    assert refused.next_position == 2
    assert drawn(other, 2).ordinal == 2


def test_old_draws_are_forgotten_and_the_newest_kept(new_run: NewRun) -> None:
    run = new_run()
    run.set(max_draws=3)
    run.recover(per_version=8)
    for position in range(6):
        drawn(run, 2 * position)
    draws, _ = run.buffer.draws()
    assert {ordinal: draw.position for ordinal, draw in draws.items()} == {3: 6, 4: 8, 5: 10}


def test_the_newest_result_of_a_prompt_is_kept_from_puts_and_from_filtered_groups(new_run: NewRun) -> None:
    run = new_run().recover(per_version=8)
    first, second, third, other = (drawn(run, position) for position in (0, 1, 2, 3))
    rewards = (1.0, 0.5, 0.4, None)
    run.buffer.put(first, group_for(first, run.version(), rewards=rewards), pass_reward=0.5)
    run.buffer.put(second, group_for(second, run.version()), filtered="zero_variance", pass_reward=2.0)
    run.buffer.put(third, group_for(third, run.version(), rewards=(None, None)), pass_reward=0.5)
    expected = (PassRate(2, 3, 0), PassRate(0, 2, 1), None, None)
    assert run.buffer.pass_rates([100, 101, 102, 103]) == expected
    assert run.buffer.pass_rates([]) == ()
    assert PassRate(2, 3, 0).share == 2 / 3
    again = run.buffer.reserve("w", (Draw(4, 100, "again"),))
    assert isinstance(again, Claim)
    run.buffer.put(again, group_for(again, run.version()), pass_reward=1.0)
    assert run.buffer.pass_rates([100]) == (PassRate(1, 2, again.ordinal),)
    run.buffer.fail(other, "reward_failed", "boom")
    run.audit()


def test_a_group_that_comes_too_late_says_nothing_of_its_prompt(new_run: NewRun) -> None:
    run = new_run().recover(per_version=8)
    claim = drawn(run, 0)
    run.passes(seconds=61)
    run.buffer.sweep()
    with pytest.raises(BufferError, match="claim is gone"):
        run.buffer.put(claim, group_for(claim, run.version()), pass_reward=0.0)
    assert run.buffer.pass_rates([100]) == (None,)


@pytest.mark.parametrize("positions", [(3, 2), (2, 2), tuple(range(MOST_OFFERED + 1))])
def test_draws_out_of_order_or_too_many_are_refused(new_run: NewRun, positions: tuple[int, ...]) -> None:
    run = new_run().recover(per_version=8)
    with pytest.raises(BufferError, match="offers at most"):
        run.buffer.reserve("w", offers(*positions))
    assert run.counts("in_flight") == (0,)


@pytest.mark.parametrize("reason", ["", "two\nlines", "x" * (MAX_REASON + 1)])
def test_a_reason_is_one_short_line(reason: str) -> None:
    with pytest.raises(BufferError, match="wanted one line"):
        Draw(0, 0, reason)


@pytest.mark.parametrize("text", [b"", b"1", b"1 x because", "1 2 ", b"-1 2 because", "\u0661 2 because"])
def test_a_draw_that_nobody_wrote_is_refused(text: bytes | str) -> None:
    with pytest.raises(BufferError):
        Draw.from_text(text)


def test_a_draw_is_read_as_it_was_written() -> None:
    draw = Draw(2**40, 7, "pass rate 0.25 (2 of 8)")
    assert Draw.from_text(draw.to_text().encode()) == draw
    with pytest.raises(BufferError, match="three whole numbers"):
        PassRate.from_text(b"1 2")
