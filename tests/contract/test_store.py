"""One body of tests for both stores: what a worker, a trainer and an operator may rely on."""

import pytest

from buffer import (
    Behind,
    BudgetTooSmall,
    Claim,
    CorruptPayload,
    Fenced,
    Leased,
    Ledger,
    NotAdmitted,
    NotReady,
    RunMismatch,
    RunRecord,
    TrajectoryError,
    pack,
)
from buffer.wire import encode
from tests.contract.conftest import NewRun
from tests.support.buffer_run import BufferRun
from tests.support.groups import group, group_for

# Admission


def test_before_the_first_trainer_nobody_is_admitted(new_run: NewRun) -> None:
    run = new_run()
    answer = run.buffer.reserve("w")
    assert isinstance(answer, NotAdmitted)
    assert answer.reason == "no_trainer"


@pytest.mark.parametrize(("limit", "per_version"), [(0, 8), (2, 4), (1, 3)])
def test_the_window_admits_limit_plus_one_versions_of_groups(new_run: NewRun, limit: int, per_version: int) -> None:
    run = new_run().recover(limit=limit, per_version=per_version)
    claims = run.claims()
    assert [claim.ordinal for claim in claims] == list(range((limit + 1) * per_version))
    answer = run.buffer.reserve("w")
    assert isinstance(answer, NotAdmitted)
    assert answer.reason == "window"


def test_after_a_resume_at_a_high_version_the_window_is_as_wide_as_at_the_start(new_run: NewRun) -> None:
    run = new_run().recover(limit=2, per_version=4, number=100)
    assert len(run.claims()) == 12


def test_a_retry_that_the_trainer_needs_is_admitted_though_the_window_is_full(new_run: NewRun) -> None:
    run = new_run().recover(limit=0, per_version=2)
    first, second = run.claims()
    run.buffer.put(second, group_for(second, run.version()))
    assert run.buffer.fail(first, "reward_failed", "boom") == "waiting"
    again = run.claim()
    assert (again.ordinal, again.attempt) == (first.ordinal, 2)
    run.buffer.put(again, group_for(again, run.version()))
    assert [entry.ordinal for entry in run.lease()] == [0, 1]


def test_the_slots_of_trained_groups_open_with_the_next_version_and_not_before(new_run: NewRun) -> None:
    run = new_run().recover(limit=0, per_version=2)
    run.make(2)
    run.lease()
    assert run.claims() == []
    run.number += 1
    run.advance()
    assert len(run.claims()) == 2


def test_what_leaves_on_the_way_is_replaced_at_once(new_run: NewRun) -> None:
    run = new_run().recover(limit=0, per_version=2)
    first, second = run.claims()
    assert run.buffer.put(first, group_for(first, run.version()), filtered="zero_variance") == "filtered"
    third = run.claim()
    assert third.ordinal == 2
    for claim in (second, third):
        run.buffer.put(claim, group_for(claim, run.version()))
    assert [entry.ordinal for entry in run.lease()] == [1, 2]
    assert run.audit()["zero_variance"] == 1


def test_a_smaller_version_after_a_resume_needs_no_correction_of_the_window(new_run: NewRun) -> None:
    run = new_run().recover(limit=1, per_version=4)
    run.make(8)
    run.lease()
    run.recover(limit=1, per_version=2)
    assert run.counts("ready", "leased") == (8, 0)
    assert run.claims() == []
    ledger = run.checkpoint(run.train())
    run.recover(limit=1, per_version=2, ledger=ledger, number=1)
    assert run.train() == [2, 3]
    assert run.counts("consumed", "leased", "ready") == (2, 2, 4)


def test_a_group_starts_on_a_server_that_is_new_enough_for_the_version_that_will_consume_it(new_run: NewRun) -> None:
    run = new_run().recover(limit=2, per_version=2)
    assert [claim.start_from for claim in run.claims()] == [-2, -2, -1, -1, 0, 0]
    run = new_run().recover(limit=0, per_version=2, number=7)
    claim = run.claim()
    assert claim.start_from == 7
    assert claim.may_start_on(run.version(7))
    assert not claim.may_start_on(run.version(6))
    assert claim.may_start_on(pack(run.branch + 1, 3)), "the trainer has resumed: no server goes back"
    assert not claim.may_start_on(pack(run.branch - 1, 7)), "7 versions of another branch are 14 away"


def test_a_paused_run_admits_nobody_and_a_resumed_one_does(new_run: NewRun) -> None:
    run = new_run().recover()
    run.buffer.pause()
    answer = run.buffer.reserve("w")
    assert isinstance(answer, NotAdmitted)
    assert answer.reason == "paused"
    run.buffer.resume()
    assert run.claim().ordinal == 0


def test_a_stop_reaches_both_sides_and_the_next_trainer_takes_it_back(new_run: NewRun) -> None:
    run = new_run().recover()
    claim, mark = run.claim(), run.buffer.stop_mark()
    run.buffer.stop()
    assert run.attach().stopped()
    answer = run.buffer.reserve("w")
    assert isinstance(answer, NotAdmitted)
    assert answer.reason == "stopped"
    assert not run.buffer.renew(claim).go_on
    run.recover()
    assert not run.buffer.stopped()
    assert run.buffer.stop_mark() == mark + 1, "who obeys the mark sees the request also after it was taken back"


# Claims


def test_a_claim_that_is_renewed_outlives_its_first_deadline(new_run: NewRun) -> None:
    run = new_run().recover()
    claim = run.claim()
    for _ in range(3):
        run.passes(59)
        assert run.buffer.renew(claim).go_on
        assert run.buffer.sweep().expired == ()
    assert run.buffer.put(claim, group_for(claim, run.version())) == "ready"


def test_a_late_renewal_counts_until_the_claim_is_swept(new_run: NewRun) -> None:
    run = new_run().recover()
    claim = run.claim()
    run.passes(100)
    assert run.buffer.renew(claim).go_on
    assert run.buffer.sweep().expired == ()


def test_what_a_lost_worker_held_is_played_by_another_and_its_late_put_leaves_nothing(new_run: NewRun) -> None:
    run = new_run().recover()
    lost = run.claim("first")
    run.passes(61)
    assert run.buffer.sweep().expired == (0,)
    with pytest.raises(Fenced):
        run.buffer.fail(lost, "reward_failed")  # also while nobody has taken it over yet
    claim = run.claim("second")
    assert (claim.ordinal, claim.attempt) == (0, 2)
    with pytest.raises(Fenced, match=r"0\.1"):
        run.buffer.put(lost, group_for(lost, run.version()))
    with pytest.raises(Fenced):
        run.buffer.renew(lost)
    with pytest.raises(Fenced):
        run.buffer.fail(lost, "reward_failed")
    run.buffer.abandon(lost)
    assert run.buffer.put(claim, group_for(claim, run.version())) == "ready"
    run.make(1)
    entry = run.lease()[0]
    assert entry.attempt == 2
    assert run.buffer.fetch(entry) == group_for(claim, run.version())
    assert run.audit()["fenced"] == 4  # fail twice, put, abandon


def test_a_heartbeat_that_comes_after_the_put_is_told_that_the_group_is_in(new_run: NewRun) -> None:
    run = new_run().recover()
    (claim,) = run.make()
    answer = run.buffer.renew(claim)
    assert (answer.go_on, answer.reason) == (False, "done")


def test_a_group_that_fails_too_often_dies_with_its_reason_and_the_run_goes_on(new_run: NewRun) -> None:
    run = new_run().recover(limit=0, per_version=2)
    for expected in ("waiting", "dead"):
        claim = run.claim()
        assert claim.ordinal == 0
        assert run.buffer.fail(claim, "reward_failed", "ValueError: boom") == expected
    assert run.counts("dead", "next_ordinal") == (1, 1)
    (letter,) = run.buffer.audit().dead
    assert (letter["ordinal"], letter["reason"], letter["error"]) == (0, "reward_failed", "ValueError: boom")
    run.make(2)
    assert [entry.ordinal for entry in run.lease()] == [1, 2]


def test_a_dead_letter_is_listed_inspected_and_played_again(new_run: NewRun) -> None:
    run = new_run()
    run.set(max_attempts=1)
    run.recover(limit=0, per_version=2)
    claim, other = run.make(2)
    run.lease()
    run.buffer.give_back(run.branch, [0], "corrupt_payload")
    (letter,) = run.attach().dead_letters()
    assert (letter.ordinal, letter.attempt, letter.reason) == (0, 1, "corrupt_payload")
    assert letter.entry is not None
    assert run.buffer.fetch(letter.entry) == group_for(claim, run.version())
    assert run.buffer.resubmit([0, other.ordinal, 77]) == (0,)
    assert run.buffer.dead_letters() == ()
    again = run.claim()
    assert (again.ordinal, again.attempt) == (0, 2)
    run.buffer.put(again, group_for(again, run.version()))
    assert [entry.ordinal for entry in run.lease()] == [0, 1]


def test_a_purged_letter_keeps_its_reason(new_run: NewRun) -> None:
    run = new_run()
    run.set(max_attempts=1)
    run.recover(limit=0, per_version=1)
    run.make(1)
    run.lease()
    run.buffer.give_back(run.branch, [0], "corrupt_payload")
    assert run.buffer.purge([0, 5]) == (0,)
    assert run.buffer.purge([0]) == ()
    (letter,) = run.buffer.dead_letters()
    assert (letter.reason, letter.entry) == ("corrupt_payload", None)
    assert run.buffer.resubmit([0]) == (0,)


def test_a_letter_played_again_below_the_watermark_is_trained_once(new_run: NewRun) -> None:
    run = new_run()
    run.set(max_attempts=1)
    run.recover(limit=1, per_version=2)
    run.buffer.fail(run.claim(), "reward_failed")
    run.make(2)
    ledger = run.checkpoint(run.train())
    assert (ledger.watermark, ledger.dead) == (3, (0,))
    run.buffer.resubmit([0])
    ledger = run.checkpoint([])
    assert (ledger.watermark, ledger.dead, ledger.reopened) == (3, (), (0,))
    run.recover(limit=1, per_version=2, ledger=ledger, number=1)
    run.make(2)
    ledger = run.checkpoint(run.train())
    assert (ledger.watermark, ledger.reopened) == (4, ())
    assert run.counts("consumed", "dead", "next_ordinal") == (4, 0, 4)


def test_a_letter_played_again_while_the_checkpoint_is_written_is_counted_once(new_run: NewRun) -> None:
    run = new_run()
    run.set(max_attempts=1)
    run.recover(limit=1, per_version=2)
    run.buffer.fail(run.claim(), "reward_failed")
    run.make(2)
    ledger = run.checkpoint(run.train(), commit=False)
    run.buffer.resubmit([0])
    claim = run.claim()
    run.buffer.put(claim, group_for(claim, run.version()), filtered="zero_variance")
    run.buffer.commit(run.branch, ledger)
    assert run.counts("consumed", "filtered", "dead", "next_ordinal") == (2, 1, 0, 3)


def test_a_claim_given_back_costs_no_failure(new_run: NewRun) -> None:
    run = new_run().recover()
    for attempt in range(1, 6):
        claim = run.claim()
        assert (claim.ordinal, claim.attempt) == (0, attempt)
        run.buffer.abandon(claim)
    assert run.counts("waiting", "dead") == (1, 0)


def test_a_whole_cluster_lost_at_once_is_nobodys_failure(new_run: NewRun) -> None:
    run = new_run().recover(limit=1, per_version=4)
    for _ in range(3):
        assert len(run.claims()) == 8
        run.passes(61)
        swept = run.buffer.sweep()
        assert swept.excused
        assert len(swept.expired) == 8
    assert run.counts("waiting", "dead") == (8, 0)


def test_a_prompt_that_kills_every_worker_at_once_dies_in_the_end(new_run: NewRun) -> None:
    run = new_run().recover(limit=0, per_version=2)
    for _ in range(20):
        if not run.claims():
            break
        run.passes(61)
        run.buffer.sweep()
    assert run.counts("dead")[0] >= 2


def test_a_clock_that_went_back_expires_nobody(new_run: NewRun) -> None:
    run = new_run().recover()
    run.claim()
    run.buffer.sweep()
    run.passes(-3600)
    swept = run.buffer.sweep()
    assert swept.guarded
    run.passes(59)
    assert run.buffer.sweep().expired == ()
    run.passes(2)
    assert run.buffer.sweep().expired == (0,)


def test_a_group_put_under_the_claim_of_another_is_refused(new_run: NewRun) -> None:
    run = new_run().recover()
    claim = run.claim()
    with pytest.raises(TrajectoryError, match=r"group 5\.1 .* claim of 0\.1"):
        run.buffer.put(claim, group(5, 1, [run.version()]))


# Groups and payloads


def test_a_put_repeated_after_a_lost_reply_is_the_same_put(new_run: NewRun) -> None:
    run = new_run().recover(per_version=1)
    claim = run.claim()
    for _ in range(2):
        assert run.buffer.put(claim, group_for(claim, run.version())) == "ready"
    assert run.counts("ready", "next_ordinal") == (1, 1)
    (entry,) = run.lease()
    assert run.buffer.put(claim, group_for(claim, run.version())) == "ready", "leased is accepted, too"
    assert run.buffer.fetch(entry) == group_for(claim, run.version())


def test_two_puts_under_one_token_never_write_over_what_is_ready(new_run: NewRun) -> None:
    run = new_run().recover(per_version=1)
    claim = run.claim()
    run.buffer.put(claim, group_for(claim, run.version()))
    run.buffer.put(claim, group_for(claim, run.version(), rewards=(0.5, 0.5, 0.5)))
    (entry,) = run.lease()
    assert run.buffer.fetch(entry) == group_for(claim, run.version())


def test_the_index_says_what_a_batch_is_planned_by(new_run: NewRun) -> None:
    run = new_run().recover(per_version=1)
    claim = run.claim()
    run.buffer.put(claim, group_for(claim, run.version(), rewards=(1.0, None, 0.25)))
    run.passes(7)
    (entry,) = run.lease()
    assert entry.rewards == (1.0, None, 0.25)
    assert entry.tokens == (5, 5, 5)
    assert entry.sampled == (3, 3, 3)
    assert entry.data_source == "arithmetic"
    assert entry.gid == "0.1"
    assert (entry.lag, entry.age_s) == (0, 7.0)
    assert entry.num_bytes > 100


def test_a_group_without_signal_is_the_trainers_to_judge(new_run: NewRun) -> None:
    run = new_run().recover(limit=0, per_version=2)
    for rewards in ((1.0, 1.0), (None, None)):
        claim = run.claim()
        assert run.buffer.put(claim, group_for(claim, run.version(), rewards=rewards)) == "ready"
    run.lease()
    run.buffer.give_back(run.branch, [0], "zero_variance")
    assert run.counts("leased", "filtered") == (1, 1)
    run.make(1)
    assert [entry.ordinal for entry in run.lease()] == [1, 2], "the same step again takes another in its place"
    assert run.audit()["zero_variance"] == 1


def test_a_group_that_is_too_large_dies_with_its_size(new_run: NewRun) -> None:
    run = new_run()
    run.set(max_group_bytes=300)
    run.recover()
    claim = run.claim()
    assert run.buffer.put(claim, group_for(claim, run.version())) == "dead"
    (letter,) = run.buffer.audit().dead
    assert letter["reason"] == "too_large"
    assert "bytes" in letter["error"]


def test_a_missing_payload_is_named_and_made_again(new_run: NewRun) -> None:
    run = new_run().recover(per_version=1)
    run.make(1)
    (entry,) = run.lease()
    run.buffer._payloads.delete([entry.key])
    with pytest.raises(CorruptPayload, match=r"0\.1 is gone"):
        run.buffer.fetch(entry)
    run.buffer.give_back(run.branch, [entry.ordinal], "corrupt_payload")
    run.make(1)
    assert [(e.ordinal, e.attempt) for e in run.lease()] == [(0, 2)]
    assert run.audit()["corrupt_payload"] == 1


def test_a_foreign_payload_is_never_trained(new_run: NewRun) -> None:
    run = new_run().recover(per_version=2)
    run.make(2)
    one, other = run.lease()
    blob = run.buffer._payloads.get(other.key)
    assert blob is not None
    run.buffer._payloads.delete([one.key])
    run.buffer._payloads.put(one.key, blob)
    with pytest.raises(CorruptPayload, match="xxh3"):
        run.buffer.fetch(one)
    run.buffer._payloads.delete([one.key])
    run.buffer.give_back(run.branch, [one.ordinal], "corrupt_payload")


def test_a_payload_that_was_never_put_is_not_touched_while_its_writer_may_still_put_it(new_run: NewRun) -> None:
    run = new_run().recover()
    claim = run.claim()
    key = f"payload:{run.name}:{claim.gid}:{claim.token}"
    stray = f"payload:{run.name}:0.1:{'0' * 32}"
    assert run.buffer._store.named([key, stray]) == {key}
    run.buffer.put(claim, group_for(claim, run.version()))
    assert run.buffer._store.named([key, stray]) == {key}


def test_what_is_trained_and_kept_by_a_checkpoint_leaves_no_payload(new_run: NewRun) -> None:
    run = new_run().recover(limit=1, per_version=2)
    claims = run.make(4)
    run.checkpoint(run.train())
    keys = [f"payload:{run.name}:{claim.gid}:{claim.token}" for claim in claims]
    assert [run.buffer._payloads.get(key) is not None for key in keys] == [False, False, True, True]
    assert run.buffer.audit().resident_bytes == sum(entry.num_bytes for entry in run.lease())


# Staleness


def test_a_lag_at_the_limit_is_trained_and_one_beyond_is_not(new_run: NewRun) -> None:
    run = new_run(policy="drop").recover(limit=1, per_version=1, number=5)
    run.buffer.advance(run.branch, 5, limit=9, groups_per_version=1)  # a window for three
    ages = {}
    for number in (5, 4, 3):
        (claim,) = run.make(1, run.version(number))
        ages[claim.ordinal] = 5 - number
    run.advance()
    leased = run.try_lease()
    assert isinstance(leased, Leased)
    assert [(left.ordinal, left.lag, left.reason, left.outcome) for left in leased.left] == [(2, 2, "stale", "waiting")]
    assert [ages[entry.ordinal] for entry in leased.entries] == [1], "the oldest that is fresh enough comes first"
    assert [entry.lag for entry in leased.entries] == [1]


def test_the_lag_of_a_group_is_that_of_its_oldest_token(new_run: NewRun) -> None:
    run = new_run(policy="drop").recover(limit=2, per_version=1, number=5)
    run.make(1, run.version(5), run.version(3), run.version(5))
    assert [entry.lag for entry in run.lease()] == [2]


def test_a_group_that_is_stale_on_arrival_is_played_again_and_the_batch_stays_whole(new_run: NewRun) -> None:
    run = new_run().recover(limit=0, per_version=2, number=3)
    claims = run.claims()
    assert run.buffer.put(claims[0], group_for(claims[0], run.version(2))) == "stale"
    run.buffer.put(claims[1], group_for(claims[1], run.version(3)))
    again = run.claim()
    assert (again.ordinal, again.attempt) == (0, 2)
    run.buffer.put(again, group_for(again, run.version(3)))
    assert [entry.ordinal for entry in run.lease()] == [0, 1]
    assert run.audit()["stale"] == 1


def test_a_prompt_is_resubmitted_so_often_and_then_discarded(new_run: NewRun) -> None:
    run = new_run(max_stale=2).recover(limit=0, per_version=1, number=3)
    for _ in range(3):
        claim = run.claim()
        assert claim.ordinal == 0
        assert run.buffer.put(claim, group_for(claim, run.version(0))) == "stale"
    assert run.counts("discarded", "waiting", "dead") == (1, 0, 0)
    assert run.claim().ordinal == 1


def test_discard_drops_a_stale_group_for_good(new_run: NewRun) -> None:
    run = new_run(on_stale="discard", policy="drop").recover(limit=1, per_version=1)
    run.make(2)
    run.train()
    run.number = 2
    answer = run.try_lease()
    assert isinstance(answer, NotReady)
    assert [(left.ordinal, left.outcome) for left in answer.left] == [(1, "discarded")]
    assert run.counts("discarded") == (1,)


def test_mask_keeps_a_stale_group_with_its_lag(new_run: NewRun) -> None:
    run = new_run(on_stale="mask", policy="drop").recover(limit=0, per_version=1, number=3)
    assert run.make(1, run.version(1))
    assert [entry.lag for entry in run.lease()] == [2]


def test_a_group_without_a_sampled_token_is_never_stale(new_run: NewRun) -> None:
    run = new_run().recover(limit=0, per_version=1, number=9)
    claim = run.claim()
    assert run.buffer.put(claim, group(claim.ordinal, claim.attempt, [], rewards=(None,))) == "ready"
    assert [entry.lag for entry in run.lease()] == [0]


def test_a_server_ahead_of_the_ledger_makes_no_negative_lag(new_run: NewRun) -> None:
    run = new_run().recover(limit=0, per_version=1)
    run.make(1, run.version(1))
    assert [entry.lag for entry in run.lease()] == [0]


def test_tokens_of_a_dead_branch_are_as_far_as_the_tree_says(new_run: NewRun) -> None:
    run = new_run(policy="drop").recover(limit=2, per_version=1)
    first = run.branch
    trained = [*_train(run), *_train(run)]
    ledger = run.checkpoint(trained)
    run.make(1, run.version(4, first))  # ahead of the checkpoint, on a branch that is about to die
    run.make(1, run.version(3, first))
    run.recover(limit=2, per_version=1, ledger=ledger, number=2)
    answer = run.try_lease()
    assert isinstance(answer, Leased)
    assert [entry.lag for entry in answer.entries] == [2], "version 4 is two steps from the fork at 2"
    run.number = 3
    answer = run.try_lease(step=9)
    assert [left.lag for left in answer.left] == []
    assert isinstance(answer, Leased)
    assert [entry.lag for entry in answer.entries] == [2], "version 3: one step back to the fork, one forth"
    run.number = 4
    run.make(1, run.version(3, first), run.version(2, first))
    answer = run.try_lease(step=10)
    assert [(left.lag) for left in answer.left] == [3]


def _train(run: BufferRun) -> list[int]:
    run.make(1)
    return run.train()


def test_wait_holds_the_batch_for_a_last_chance_group_that_fits_it(new_run: NewRun) -> None:
    run = new_run(policy="wait", wait_deadline_s=30).recover(limit=1, per_version=2, number=5)
    slow = run.claim("slow")
    assert run.buffer.renew(slow, run.version(4)).go_on
    run.make(2, run.version(5))
    answer = run.try_lease()
    assert isinstance(answer, NotReady)
    assert [(one.ordinal, one.worker) for one in answer.waiting_for] == [(slow.ordinal, "slow")]
    assert "stale_groups" in answer.detail
    run.buffer.put(slow, group_for(slow, run.version(4)))
    assert [entry.ordinal for entry in run.lease()] == [0, 1], "the last chance is taken first"


def test_wait_ends_at_its_deadline_and_the_group_falls_under_drop(new_run: NewRun) -> None:
    run = new_run(policy="wait", wait_deadline_s=30).recover(limit=1, per_version=1, number=5)
    slow = run.claim()
    run.buffer.renew(slow, run.version(4))
    run.make(1)
    assert isinstance(run.try_lease(), NotReady)
    run.passes(29)
    run.buffer.renew(slow, run.version(4))
    assert isinstance(run.try_lease(), NotReady)
    run.passes(2)
    assert run.train() == [1]
    assert run.buffer.put(slow, group_for(slow, run.version(4))) == "stale"


def test_wait_does_not_wait_for_what_cannot_be_in_the_batch(new_run: NewRun) -> None:
    run = new_run(policy="wait").recover(limit=1, per_version=1, number=5)
    slow = run.claim()
    run.buffer.renew(slow, run.version(4))
    run.make(1, run.version(4))
    assert [entry.ordinal for entry in run.lease()] == [1], "a last-chance group fills the batch already"


def test_wait_does_not_wait_for_a_group_without_tokens_nor_for_one_without_a_worker(new_run: NewRun) -> None:
    run = new_run(policy="wait").recover(limit=1, per_version=1, number=5)
    idle, lost = run.claim(), run.claim()
    assert isinstance(run.try_lease(), NotReady)
    run.buffer.renew(lost, run.version(4))
    run.buffer.abandon(lost)
    again = run.claim()
    run.buffer.put(again, group_for(again, run.version(5)))
    assert run.buffer.renew(idle).go_on
    assert [entry.ordinal for entry in run.lease()] == [1]


def test_wait_leaves_a_last_chance_group_to_a_later_step_of_the_same_version(new_run: NewRun) -> None:
    run = new_run(policy="wait").recover(limit=0, per_version=2, number=5)
    slow = run.claim()
    run.buffer.renew(slow, run.version(5))
    run.make(1)
    assert [entry.ordinal for entry in run.lease(1, step=11)] == [1]
    assert isinstance(run.try_lease(1, step=12), NotReady)
    run.buffer.put(slow, group_for(slow, run.version(5)))
    assert [entry.ordinal for entry in run.lease(1, step=12)] == [0]


def test_drop_does_not_wait(new_run: NewRun) -> None:
    run = new_run(policy="drop").recover(limit=1, per_version=1, number=5)
    slow = run.claim()
    run.buffer.renew(slow, run.version(4))
    run.make(1)
    assert run.train() == [1]


def test_a_doomed_group_is_told_to_stop_if_that_is_asked_for(new_run: NewRun) -> None:
    run = new_run(policy="drop", cancel_doomed=True).recover(limit=1, per_version=1, number=5)
    claim = run.claim()
    assert run.buffer.renew(claim, run.version(4)).go_on
    run.number = 6
    run.advance()
    answer = run.buffer.renew(claim, run.version(4))
    assert (answer.go_on, answer.reason) == (False, "doomed")


# Order


def test_oldest_takes_the_oldest_first_and_breaks_ties_by_ordinal(new_run: NewRun) -> None:
    run = new_run(policy="drop").recover(limit=3, per_version=3, number=9)
    for number in (9, 8, 9, 7, 8):
        run.make(1, run.version(number))
    assert [entry.ordinal for entry in run.lease(2, step=1)] == [1, 3]
    assert [entry.ordinal for entry in run.lease(2, step=2)] == [0, 4]


def test_in_order_of_ordinals_a_batch_waits_for_the_smallest_and_skips_the_closed(new_run: NewRun) -> None:
    run = new_run(order="ordinal").recover(limit=1, per_version=2)
    first, second, third = run.claim(), run.claim(), run.claim()
    run.buffer.put(third, group_for(third, run.version()))
    run.buffer.put(second, group_for(second, run.version()))
    answer = run.try_lease()
    assert isinstance(answer, NotReady)
    assert "ordinals" in answer.detail
    run.buffer.put(first, group_for(first, run.version()), filtered="zero_variance")
    assert [entry.ordinal for entry in run.lease()] == [1, 2]


# The trainer


def test_a_lease_is_all_or_nothing_and_nothing_for_nobody(new_run: NewRun) -> None:
    run = new_run().recover(limit=0, per_version=2)
    assert run.lease(0) == ()
    run.make(1)
    answer = run.try_lease(2)
    assert isinstance(answer, NotReady)
    assert "need 2 groups, have ready=1" in answer.detail
    assert [entry.ordinal for entry in run.lease(1)] == [0]


def test_a_lease_repeated_after_a_lost_reply_gives_the_same_groups(new_run: NewRun) -> None:
    run = new_run().recover(limit=1, per_version=2)
    run.make(4)
    assert run.lease(step=1) == run.lease(step=1)
    assert run.counts("leased", "ready") == (2, 2)
    assert [entry.ordinal for entry in run.lease(step=2)] == [2, 3]


def test_what_a_dead_trainer_held_goes_to_the_next_one_whole_and_once(new_run: NewRun) -> None:
    run = new_run().recover(limit=0, per_version=3)
    run.make(3)
    assert len(run.lease(2)) == 2
    old = run.buffer
    run.recover(limit=0, per_version=3)
    assert [entry.ordinal for entry in run.lease(3)] == [0, 1, 2]
    for call in (
        lambda: old.lease(1, 0, 1, 1),
        lambda: old.advance(1, 1, limit=0, groups_per_version=3),
        lambda: old.give_back(1, [0]),
        lambda: old.commit(1, Ledger(branch=1)),
        lambda: old.ledger(1, 0, []),
    ):
        with pytest.raises(Fenced, match="Another trainer has taken over"):
            call()


def test_a_leased_group_has_no_deadline_so_a_trainer_that_stalls_keeps_it(new_run: NewRun) -> None:
    run = new_run().recover(limit=0, per_version=1)
    run.make(1)
    entries = run.lease()
    run.passes(7 * 24 * 3600)
    assert run.buffer.sweep().expired == ()
    assert run.counts("leased") == (1,)
    assert [entry.key for entry in run.lease()] == [entries[0].key]


def test_two_trainers_that_resume_from_one_checkpoint_get_branches_of_their_own(new_run: NewRun) -> None:
    run = new_run().recover()
    assert run.branch == 1
    assert run.buffer.recover("n", None, number=0, limit=0, groups_per_version=2) == 2
    assert run.buffer.recover("n", None, number=0, limit=0, groups_per_version=2) == 2, "one start opens one branch"
    assert run.attach().recover("m", None, number=0, limit=0, groups_per_version=2) == 3
    assert run.attach().recover("o", None, number=0, limit=0, groups_per_version=2, seen=8) == 9


def test_a_trainer_whose_branch_the_ledger_has_forgotten_is_told_so(new_run: NewRun) -> None:
    run = new_run().recover()
    with pytest.raises(Behind, match="lost its latest writes"):
        run.buffer.lease(7, 0, 1, 1)


def test_the_trained_version_never_goes_back(new_run: NewRun) -> None:
    run = new_run().recover(number=57)
    with pytest.raises(Fenced, match="57"):
        run.buffer.advance(run.branch, 1, limit=0, groups_per_version=2)
    with pytest.raises(Fenced, match="57"):
        run.buffer.lease(run.branch, 56, 1, 1)


def test_a_repeated_advance_does_not_open_the_window_twice(new_run: NewRun) -> None:
    run = new_run().recover(limit=0, per_version=2)
    run.make(2)
    run.train()
    run.make(2)
    run.lease()
    run.advance()
    assert run.claims() == []


def test_a_lease_carries_the_trainers_own_number(new_run: NewRun) -> None:
    run = new_run(policy="drop").recover(limit=0, per_version=1)
    run.make(1)
    run.lease()
    run.number = 1  # trained; the publish failed and with it the advance
    assert isinstance(run.try_lease(), NotReady)
    assert run.claim().start_from == 1, "admission is open again, for groups of the version that was trained"


def test_a_group_given_back_untouched_is_ready_again(new_run: NewRun) -> None:
    run = new_run().recover(limit=0, per_version=2)
    run.make(2)
    run.lease()
    run.buffer.give_back(run.branch, [0])
    run.buffer.give_back(run.branch, [0])
    run.buffer.give_back(run.branch, [99])
    assert run.counts("ready", "leased") == (1, 1)


def test_a_batch_that_kills_its_trainer_three_times_dies(new_run: NewRun) -> None:
    run = new_run().recover(limit=1, per_version=2)
    run.make(3)
    for _ in range(3):
        assert [entry.ordinal for entry in run.lease()] == [0, 1]
        run.recover(limit=1, per_version=2)
    assert run.counts("dead", "ready") == (2, 1)
    assert {letter["reason"] for letter in run.buffer.audit().dead} == {"trainer_poison"}
    assert all("newest step" in letter["error"] and letter["payload"] for letter in run.buffer.audit().dead)


def test_only_the_newest_batch_is_suspected_of_killing_the_trainer(new_run: NewRun) -> None:
    run = new_run().recover(limit=1, per_version=1)
    run.make(2)
    for _ in range(3):
        run.lease(step=1)
        run.lease(step=2)
        run.recover(limit=1, per_version=1)
    assert [letter["ordinal"] for letter in run.buffer.audit().dead] == [1]
    assert [entry.ordinal for entry in run.lease()] == [0]


# Checkpoints


def test_a_crash_before_the_checkpoint_trains_again_and_one_after_it_does_not(new_run: NewRun) -> None:
    run = new_run(policy="drop").recover(limit=3, per_version=2)
    run.make(8)
    first = run.train()
    ledger = run.checkpoint(first, commit=False)
    run.train()
    run.recover(limit=3, per_version=2, ledger=ledger, number=1)
    assert run.train() == [2, 3], "0 and 1 are in the checkpoint, 2 and 3 were not"
    assert run.counts("consumed", "leased") == (2, 2)


def test_an_older_checkpoint_reopens_what_was_committed_after_it(new_run: NewRun) -> None:
    run = new_run().recover(limit=0, per_version=2)
    run.make(2)
    older = run.checkpoint(run.train())
    run.make(2)
    run.checkpoint([0, 1, *run.train()])
    assert run.counts("consumed") == (4,)
    run.recover(limit=0, per_version=2, ledger=older, number=1)
    assert run.counts("consumed", "waiting") == (2, 2)
    assert [claim.ordinal for claim in run.claims()] == [2, 3]


def test_a_commit_and_a_recover_survive_the_loss_of_everything_in_the_store(new_run: NewRun) -> None:
    run = new_run().recover(limit=1, per_version=2)
    run.make(4)
    trained = run.train()
    ledger = Ledger.from_json(run.checkpoint(trained).to_json())
    other = new_run()
    other.recover(limit=1, per_version=2, ledger=ledger, number=1)
    assert other.branch == run.branch + 1
    assert other.counts("consumed", "next_ordinal") == (2, 2)
    assert [claim.ordinal for claim in other.claims()] == [2, 3, 4, 5]


def test_the_watermark_moves_past_all_that_is_resolved_whatever_became_of_it(new_run: NewRun) -> None:
    run = new_run(max_stale=0).recover(limit=3, per_version=2, number=4)
    claims = run.claims()[:5]
    run.buffer.put(claims[0], group_for(claims[0], run.version()))
    run.buffer.put(claims[1], group_for(claims[1], run.version()), filtered="zero_variance")
    run.buffer.put(claims[2], group_for(claims[2], run.version(0)))
    for _ in range(2):
        claim = claims[3] if claims[3] is not None else run.claim()
        claims[3] = None
        run.buffer.fail(claim, "reward_failed")
    run.buffer.put(claims[4], group_for(claims[4], run.version()))
    ledger = run.checkpoint(run.train())
    assert ledger.watermark == 5, "0 and 4 trained, 1 filtered, 2 discarded, 3 dead"
    assert ledger.dead == (3,)
    assert dict(ledger.below) == {"consumed": 2, "filtered": 1, "discarded": 1}


def test_a_commit_repeated_or_old_changes_nothing(new_run: NewRun) -> None:
    run = new_run().recover(limit=0, per_version=1)
    run.make(1)
    first = run.checkpoint(run.train())
    run.make(1)
    second = run.checkpoint([0, *run.train()])
    for ledger in (second, first):
        run.buffer.commit(run.branch, ledger)
    assert run.counts("consumed", "next_ordinal") == (2, 2)


def test_the_ledger_outranks_a_store_that_offers_a_trained_group_again(new_run: NewRun) -> None:
    run = new_run().recover(limit=1, per_version=1)
    run.make(2)
    (entry,) = run.lease(step=1)
    # The store loses the lease: the group is ready again, with its payload.
    run.buffer._store.give_back(run.branch, "", [entry.ordinal], "", run.buffer._limits)
    run.number = 1
    assert [e.ordinal for e in run.lease(step=2)] == [1], "0 was trained: it is kept for the commit, not trained"
    ledger = run.checkpoint([0, 1])
    assert ledger.watermark == 2
    assert run.counts("consumed", "leased", "ready") == (2, 0, 0)


# Bytes


def test_bytes_refuse_new_prompts_only_and_never_a_retry_or_a_put(new_run: NewRun) -> None:
    run = new_run()
    run.set(max_bytes=200_000, max_group_bytes=100_000)
    run.recover(limit=3, per_version=1)
    first, second = run.claims()
    answer = run.buffer.reserve("w")
    assert isinstance(answer, NotAdmitted)
    assert answer.reason == "bytes"
    assert "checkpoint" in answer.detail
    run.buffer.fail(first, "reward_failed")
    again = run.claim()
    assert again.ordinal == first.ordinal
    for claim in (again, second):
        assert run.buffer.put(claim, group_for(claim, run.version())) == "ready"
    assert run.claim().ordinal == 2, "their real size is small"


def test_a_lease_that_lacks_groups_for_lack_of_bytes_asks_for_a_checkpoint_which_helps(new_run: NewRun) -> None:
    run = new_run()
    num_bytes = len(encode(group(0, 1, [pack(1, 0)])))
    run.set(max_bytes=2 * num_bytes - 1, max_group_bytes=num_bytes)
    run.recover(limit=0, per_version=1)
    run.make(1)
    trained = run.train()
    answer = run.try_lease()
    assert isinstance(answer, NotReady)
    assert answer.bytes_refused
    assert "max_bytes" in answer.detail
    run.checkpoint(trained)
    run.make(1)
    assert [entry.ordinal for entry in run.lease()] == [1]


def test_dead_letters_take_no_part_of_the_budget_and_lose_their_payloads_first(new_run: NewRun) -> None:
    run = new_run()
    run.set(max_dead_bytes=1200, max_attempts=1)
    run.recover(limit=3, per_version=2)
    run.make(4)
    run.lease(4)
    for ordinal in range(4):
        run.passes(1)
        run.buffer.give_back(run.branch, [ordinal], "corrupt_payload")
    audit = run.buffer.audit()
    assert audit.resident_bytes == 0
    assert [letter["payload"] for letter in audit.dead] == [False, False, True, True]
    assert [letter["reason"] for letter in audit.dead] == ["corrupt_payload"] * 4


def test_a_budget_that_cannot_hold_one_version_is_refused_at_the_start(new_run: NewRun) -> None:
    run = new_run()
    run.set(max_bytes=300_000, max_group_bytes=100_000)
    with pytest.raises(BudgetTooSmall, match="400000 in all"):
        run.recover(per_version=4)


# The run record, evaluations, hints, reports

RECORD = RunRecord(schema=1, dataset="d41d8", seed=7, group_size=8, order="oldest", tokenizer="t0")


def test_the_run_record_is_compared_field_by_field_and_completed(new_run: NewRun) -> None:
    run = new_run()
    assert run.buffer.record() is None
    assert run.buffer.register(RECORD) == RECORD
    trainer = RunRecord(schema=1, dataset="", seed=7, group_size=8, order="oldest", tokenizer="t0", layout="l0")
    both = RunRecord(schema=1, dataset="d41d8", seed=7, group_size=8, order="oldest", tokenizer="t0", layout="l0")
    assert run.attach().register(trainer) == both
    other = RunRecord(schema=1, dataset="ffff", seed=8, group_size=8, order="oldest", tokenizer="t0", layout="l1")
    with pytest.raises(RunMismatch, match="dataset = d41d8, this process has dataset = ffff"):
        run.buffer.register(other)
    run.recover()
    assert run.buffer.record() == both


def test_runs_do_not_see_each_other(new_run: NewRun) -> None:
    one, other = new_run().recover(), new_run().recover()
    one.make(2)
    assert other.counts("ready", "next_ordinal") == (0, 0)
    assert one.counts("ready", "next_ordinal") == (2, 2)


def test_an_evaluation_has_its_prompts_in_order_and_takes_nothing_from_training(new_run: NewRun) -> None:
    run = new_run().recover(limit=1, per_version=2, number=6)
    worker = run.attach()
    assert worker.evaluation() is None
    opened = run.buffer.open_evaluation(run.version(), num_prompts=3, group_size=2)
    ledger = worker.evaluation()
    assert ledger is not None
    claims = []
    while isinstance(claim := ledger.reserve("w"), Claim):
        claims.append(claim)
    assert [(claim.ordinal, claim.start_from) for claim in claims] == [(0, 6), (1, 6), (2, 6)]
    late = claims.pop()
    assert ledger.put(late, group_for(late, run.version(5))) == "stale"
    claims.append(ledger.reserve("w"))
    for claim in claims:
        assert ledger.put(claim, group_for(claim, run.version())) == "ready"
    leased = opened.lease(run.branch, 6, 0, 3)
    assert isinstance(leased, Leased)
    assert [opened.fetch(entry).ordinal for entry in leased.entries] == [0, 1, 2]
    assert run.counts("next_ordinal") == (0,)
    run.buffer.close_evaluation()
    assert worker.evaluation() is None
    assert opened.counts()["next_ordinal"] == 0
    with pytest.raises(Fenced):
        ledger.put(claims[0], group_for(claims[0], run.version()))


def test_an_evaluation_ends_with_its_last_prompt_also_when_some_fail(new_run: NewRun) -> None:
    run = new_run().recover()
    run.buffer.open_evaluation(run.version(), num_prompts=1, group_size=1)
    ledger = run.attach().evaluation()
    assert ledger is not None
    for _ in range(2):
        claim = ledger.reserve("w")
        assert isinstance(claim, Claim)
        assert claim.ordinal == 0
        ledger.fail(claim, "reward_failed")
    assert ledger.counts()["dead"] == 1
    assert isinstance(ledger.reserve("w"), NotAdmitted)


def test_an_old_trainer_opens_no_evaluation_and_a_new_one_drops_what_it_left_open(new_run: NewRun) -> None:
    run = new_run().recover()
    old, version = run.buffer, run.version()
    left_open = old.open_evaluation(version, num_prompts=2, group_size=1)
    assert isinstance(left_open.reserve("w"), Claim)
    run.recover()
    assert run.attach().evaluation() is None
    assert left_open.counts()["next_ordinal"] == 0
    with pytest.raises(Fenced):
        old.open_evaluation(version, num_prompts=2, group_size=1)
    assert run.attach().evaluation() is None


def test_an_evaluation_after_a_resume_takes_servers_that_hold_the_same_weights(new_run: NewRun) -> None:
    run = new_run().recover(limit=0, per_version=1)
    ledger = run.checkpoint(_train(run))
    old = run.branch
    run.recover(limit=0, per_version=1, ledger=ledger, number=1)
    run.buffer.open_evaluation(run.version(), num_prompts=1, group_size=1)
    evaluation = run.attach().evaluation()
    assert evaluation is not None
    claim = evaluation.reserve("w")
    assert isinstance(claim, Claim)
    assert claim.may_start_on(pack(old, 1)), "the fork itself"
    assert evaluation.put(claim, group_for(claim, pack(old, 1))) == "ready"


def test_a_hint_wakes_whoever_waits_for_that_kind_of_change(new_run: NewRun) -> None:
    run = new_run().recover(limit=0, per_version=1)
    ready, room, both = run.buffer.hints("ready"), run.buffer.hints("room"), run.buffer.hints()
    assert not both.wait(0.01)
    run.make(1)
    assert ready.wait(5)
    assert both.wait(5)
    assert not room.wait(0.01)
    run.train()
    assert room.wait(5)
    assert not ready.wait(0.01)


def test_the_latest_report_of_each_source_is_kept(new_run: NewRun) -> None:
    run = new_run()
    run.buffer.report("worker-1", {"groups": 3})
    run.buffer.report("worker-1", {"groups": 4, "waits_for": "admission"})
    run.buffer.report("worker-2", {"groups": 1})
    reports = run.attach().reports()
    assert reports["worker-1"] == {"groups": 4, "waits_for": "admission", "at_ms": run.now_ms}
    assert set(reports) == {"worker-1", "worker-2"}


def test_many_versions_without_a_drift(new_run: NewRun) -> None:
    run = new_run(policy="drop").recover(limit=2, per_version=2)
    trained: list[int] = []
    for _ in range(10):
        for claim in run.claims():
            run.buffer.put(claim, group_for(claim, run.version()))
        assert all(entry.lag <= 2 for entry in run.lease())
        trained += run.train()
    counts = run.buffer.counts()
    assert counts["leased"] == 20
    assert sum(counts[s] for s in ("ready", "leased", "waiting", "in_flight", "discarded")) == counts["next_ordinal"]
    assert len(trained) == len(set(trained)) == 20
