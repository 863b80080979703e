"""Bugs that other projects had with staleness, by their ids, played on both stores: none of them may come here."""

from typing import Any

import pytest
from pydantic import ValidationError

from buffer import Claim, Fenced, Leased, NotAdmitted, NotReady, Span, StalenessConfig, TrajectoryError, staleness
from buffer.trajectory import Group
from tests.contract.conftest import NewRun
from tests.support.buffer_run import BufferRun
from tests.support.groups import DIGEST, group, group_for, row


def put_while_fresh(run: BufferRun, *versions: int) -> None:
    """Groups of these versions that were within the limit when they came in; it is what it was again afterwards."""
    run.buffer.advance(run.branch, run.number, limit=9, groups_per_version=run.per_version)
    for number in versions:
        run.make(1, run.version(number))
    run.advance()


def test_a_lag_at_the_limit_is_kept_and_one_past_it_is_dropped(new_run: NewRun) -> None:
    """B021: versions 5, 4, 3 at 5 with a limit of 1."""
    run = new_run(policy="drop").recover(limit=1, per_version=2, number=5)
    put_while_fresh(run, 5, 4, 3)
    answer = run.try_lease(2)
    assert isinstance(answer, Leased)
    assert sorted(entry.lag for entry in answer.entries) == [0, 1]
    assert [left.lag for left in answer.left] == [2]


@pytest.mark.parametrize("version", [None, -1, "5", 1.5, True])
def test_a_missing_version_is_an_error_that_names_it(version: Any) -> None:
    """B022: a token without a version is never trained as fresh."""
    with pytest.raises((TrajectoryError, TypeError), match="version"):
        Span(version, DIGEST, 3)


def test_sampled_tokens_without_a_span_are_refused() -> None:
    """B022: nor may a row leave its spans out."""
    whole = row([5])
    with pytest.raises(TrajectoryError, match="spans"):
        type(whole)(whole.token_ids, whole.mask, whole.logprobs, (), whole.num_prompt_tokens)


def test_the_version_never_goes_backwards_and_no_lag_is_negative(new_run: NewRun) -> None:
    """B024: after 57, 1 is refused with both numbers, and what waits keeps its lag."""
    run = new_run(policy="drop").recover(limit=2, per_version=1, number=57)
    run.make(1, run.version(57))
    with pytest.raises(Fenced, match=r"advance to 1 .*version 57"):
        run.buffer.advance(run.branch, 1, limit=2, groups_per_version=1)
    with pytest.raises(Fenced, match=r"version 57"):
        run.buffer.lease(run.branch, 1, 2, 1)
    assert [entry.lag for entry in run.lease()] == [0]
    run.recover(limit=60, per_version=1, number=1)
    assert [entry.lag for entry in run.lease()] == [58], "back at 1 on a new branch: along the tree, over the root"


def test_after_a_resume_the_window_holds_as_much_as_ever_and_no_burst(new_run: NewRun) -> None:
    """B025: limit 2, 4 groups a version, resumed at version 100: 12, not 412."""
    run = new_run(policy="drop").recover(limit=2, per_version=4, number=100)
    assert len(run.claims()) == 12


def test_what_was_taken_and_trained_before_a_resume_is_not_counted_against_the_next(new_run: NewRun) -> None:
    """B025: the other way round, a resume in the middle of a version does not start with a smaller window."""
    run = new_run(policy="drop").recover(limit=0, per_version=4)
    run.make(4)
    trained = [entry.ordinal for entry in run.lease(2, step=1)]
    ledger = run.checkpoint(trained)
    run.recover(limit=0, per_version=4, ledger=ledger)
    assert run.counts("consumed", "ready") == (2, 2)
    assert len(run.claims()) == 2, "two are open, so two more fill the window of four"


def test_the_window_is_shared_by_all_workers_and_a_failed_group_is_admitted_again(new_run: NewRun) -> None:
    """B026: limit 0, two workers, two groups a version; the first one's first group fails."""
    run = new_run().recover(limit=0, per_version=2)
    first, second = run.claim("worker-1"), run.claim("worker-2")
    run.buffer.fail(first, "reward_failed", "boom")
    run.buffer.put(second, group_for(second, run.version()))
    again = run.claim("worker-1")
    run.buffer.put(again, group_for(again, run.version()))
    assert run.train() == [first.ordinal, second.ordinal]


def test_limit_zero_admits_one_version_of_groups_and_training_goes_on(new_run: NewRun) -> None:
    """B027: (0 + 1) x 8 groups in flight, not 0 x 8."""
    assert staleness.window(0, 8) == 8
    run = new_run().recover(limit=0, per_version=8)
    claims = run.claims()
    assert len(claims) == 8
    for claim in claims:
        run.buffer.put(claim, group_for(claim, run.version()))
    assert len(run.train()) == 8
    assert len(run.claims()) == 8


def test_limit_zero_is_strictly_on_policy(new_run: NewRun) -> None:
    """B028: instant generation, wait, three versions of two groups: no token is of the weights before."""
    run = new_run(policy="wait").recover(limit=0, per_version=2)
    for number in range(3):
        run.make(2)
        # While the trainer holds the batch nobody may start on the weights it is about to replace.
        entries = run.lease()
        assert isinstance(run.buffer.reserve("eager"), NotAdmitted)
        assert [entry.lag for entry in entries] == [0, 0]
        assert all(number == low == high for e in entries for _, (low, high) in ranges(run.buffer.fetch(e)))
        run.number += 1
        run.advance()


def ranges(group: Group) -> list[tuple[int, tuple[int, int]]]:
    return sorted(group.number_ranges().items())


def test_a_trainer_slower_than_its_producers_trains_nothing_past_the_limit(new_run: NewRun) -> None:
    """B030: limit 2, ten groups wanted a version, two trained: what was made is trained, dropped or still there."""
    run = new_run(policy="drop", on_stale="discard").recover(limit=2, per_version=2)
    made = 0
    for _ in range(10):
        for _ in range(10):
            if isinstance(claim := run.buffer.reserve("w"), Claim):
                run.buffer.put(claim, group_for(claim, run.version()))
                made += 1
        answer = run.try_lease()
        assert isinstance(answer, Leased)
        assert all(entry.lag <= 2 for entry in answer.entries)
        run.number += 1
        run.advance()
    assert sum(run.counts("ready", "leased", "discarded")) == made
    assert run.counts("in_flight", "waiting") == (0, 0)


def test_a_stale_group_leaves_before_the_batch_is_formed_and_the_batch_is_whole(new_run: NewRun) -> None:
    """B031: four wanted, one of the first four stale, a fifth fresh: four fresh ones, one counted stale."""
    run = new_run(policy="drop").recover(limit=1, per_version=4, number=5)
    put_while_fresh(run, 5, 5, 3, 5, 5)
    answer = run.try_lease()
    assert isinstance(answer, Leased)
    assert [entry.ordinal for entry in answer.entries] == [0, 1, 3, 4]
    assert [left.ordinal for left in answer.left] == [2]
    assert run.audit()["stale"] == 1


def test_a_dropped_prompt_is_played_again_and_every_prompt_is_trained(new_run: NewRun) -> None:
    """B032: four prompts, one dropped as stale, two versions of two: all four are trained and nothing hangs."""
    run = new_run().recover(limit=0, per_version=2, number=5)
    first = run.claim()
    assert run.buffer.put(first, group_for(first, run.version(4))) == "stale"
    run.make(2)
    trained = [*run.train()]
    run.make(2)
    trained += run.train()
    assert trained == [0, 1, 2, 3]
    assert run.audit()["stale"] == 1


def test_a_batch_belongs_to_its_step_and_no_other_step_is_given_it(new_run: NewRun) -> None:
    """B035: what was leased for step 3 is never step 4's, however late anybody asks."""
    run = new_run(policy="drop").recover(limit=2, per_version=4)
    run.make(4)
    third = run.lease(2, step=3)
    fourth = run.lease(2, step=4)
    assert {entry.ordinal for entry in third} & {entry.ordinal for entry in fourth} == set()
    assert run.lease(2, step=3) == third
    late_answer = run.try_lease(2, step=5)
    assert isinstance(late_answer, NotReady)


def test_a_group_is_as_old_as_its_oldest_member(new_run: NewRun) -> None:
    """B036: members of versions 5, 5, 3 and 5 at 5 with a limit of 1: lag 2, so the group goes."""
    run = new_run(policy="drop").recover(limit=1, per_version=1, number=5)
    claim = run.claim()
    members = [
        group(claim.ordinal, claim.attempt, [run.version(number)], rewards=(1.0,)).trajectories[0]
        for number in (5, 5, 3, 5)
    ]
    assert run.buffer.put(claim, Group(claim.ordinal, claim.attempt, "mixed", tuple(members))) == "stale"
    assert staleness.kept_groups([5, 5, 3, 5], ["g"] * 4, 5, 1) == [False] * 4


def test_a_batch_that_is_simply_not_full_waits_for_no_straggler(new_run: NewRun) -> None:
    """B037: with limit 0 every group in flight is at its last chance, and yet none of them holds the lease."""
    run = new_run(policy="wait").recover(limit=0, per_version=2)
    run.make(1)
    slow = run.claim()
    run.buffer.renew(slow, run.version())
    answer = run.try_lease()
    assert isinstance(answer, NotReady)
    assert answer.waiting_for == ()
    assert "need 2 groups" in answer.detail


@pytest.mark.parametrize("limit", [True, "2", -1, float("nan"), 1.5])
def test_a_limit_that_is_no_number_of_versions_is_refused_by_name(limit: Any) -> None:
    """B038: at load, not when it is first used."""
    with pytest.raises(ValidationError, match="limit"):
        StalenessConfig(limit=limit)


def test_consumed_groups_hold_no_place_whether_or_not_their_workers_have_noticed(new_run: NewRun) -> None:
    """B039: four places, four groups consumed: a fifth starts at once, and outstanding is what is open."""
    run = new_run().recover(limit=0, per_version=4)
    claims = run.claims()
    for claim in claims:
        run.buffer.put(claim, group_for(claim, run.version()))
    assert isinstance(run.buffer.reserve("w"), NotAdmitted)
    run.train()
    assert run.counts("in_flight", "waiting", "ready") == (0, 0, 0)
    assert run.claim().ordinal == 4
