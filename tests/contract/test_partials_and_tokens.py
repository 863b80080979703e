"""Both stores: what a worker parks reaches the ordinal's next owner, and every sampled token is accounted for."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from buffer import Claim, CorruptPayload, Fenced, Leased, NotReady
from buffer.tokens import TokenLedger
from tests.contract.conftest import NewRun
from tests.support.buffer_run import BufferRun
from tests.support.groups import group_for, partials

PARKED = 6  # sampled tokens of `partials` under one version: two episodes of three
GROUP = 6  # and of `group_for`: two trajectories of three


def tokens(run: BufferRun) -> TokenLedger:
    return run.buffer.audit().tokens


def fates(run: BufferRun) -> dict[str, int]:
    """fate -> tokens, over all sources."""
    total: dict[str, int] = {}
    for (fate, _), spent in tokens(run).fates.items():
        total[fate] = total.get(fate, 0) + spent.tokens
    return {fate: number for fate, number in total.items() if number}


def parked_claim(run: BufferRun) -> Claim:
    claim = run.claim()
    assert claim.parked is None
    assert run.buffer.fetch_partials(claim) is None
    assert run.buffer.park(claim, partials(run.version()), "arithmetic")
    return claim


def test_the_next_owner_of_an_abandoned_ordinal_gets_what_was_parked(new_run: NewRun) -> None:
    run = new_run().recover()
    first = parked_claim(run)
    run.buffer.abandon(first)
    assert tokens(run).held == PARKED
    second = run.claim()
    assert second.ordinal == first.ordinal
    assert second.parked is not None
    assert second.parked.sampled == (3, 3)
    assert run.buffer.fetch_partials(second) == partials(run.version())


def test_a_worker_that_is_killed_leaves_what_it_had_parked(new_run: NewRun) -> None:
    run = new_run().recover()
    parked_claim(run)
    run.passes(61)
    run.buffer.sweep()
    assert run.buffer.fetch_partials(run.claim()) == partials(run.version())


def test_what_is_parked_later_replaces_what_was_parked_before(new_run: NewRun) -> None:
    run = new_run().recover(limit=1)
    claim = parked_claim(run)
    newer = partials(run.version(), run.version())
    assert run.buffer.park(claim, newer)
    run.buffer.abandon(claim)
    assert run.buffer.fetch_partials(run.claim()) == newer
    assert tokens(run).held == tokens(run).sampled == 2 * PARKED


def test_a_group_that_comes_in_takes_the_parked_tokens_with_it(new_run: NewRun) -> None:
    run = new_run().recover()
    claim = parked_claim(run)
    run.buffer.put(claim, group_for(claim, run.version()))
    assert tokens(run).sampled == tokens(run).held == GROUP
    assert run.buffer._store.books().cards[claim.ordinal].parked_key == ""


def test_nobody_parks_for_an_ordinal_that_he_lost_or_has_put(new_run: NewRun) -> None:
    run = new_run().recover()
    lost = run.claim()
    run.passes(61)
    run.buffer.sweep()
    done = run.claim()
    run.buffer.put(done, group_for(done, run.version()))
    for claim in (lost, done):
        with pytest.raises(Fenced):
            run.buffer.park(claim, partials(run.version()))
    assert run.buffer._store.books().trash == set()


def test_after_a_failure_the_prompt_is_played_from_its_start(new_run: NewRun) -> None:
    run = new_run().recover()
    claim = parked_claim(run)
    assert run.buffer.fail(claim, "reward_failed", "boom", sampled=(4, 4), data_source="arithmetic") == "waiting"
    assert run.claim().parked is None
    assert fates(run) == {"failed/reward_failed": 8}


def test_parked_tokens_past_the_limit_are_not_gone_on_from(new_run: NewRun) -> None:
    """B033: continued, they would be stale whenever they came in."""
    run = new_run().recover(limit=0, per_version=1)
    claim = parked_claim(run)
    run.buffer.abandon(claim)
    run.number += 1
    run.advance()
    assert run.claim().parked is None
    assert fates(run) == {"stale/partials": PARKED}
    assert run.audit()["stale_partials"] == 1
    run.buffer.sweep()
    assert run.buffer._store.books().trash == set()


def test_under_mask_they_are(new_run: NewRun) -> None:
    run = new_run(on_stale="mask").recover(limit=0, per_version=1)
    claim = parked_claim(run)
    run.buffer.abandon(claim)
    run.number += 1
    run.advance()
    assert run.claim().parked is not None


def test_what_is_too_large_to_put_is_not_parked(new_run: NewRun) -> None:
    run = new_run()
    run.set(max_group_bytes=1000, max_bytes=10_000)
    run.recover()
    claim = run.claim()
    many = partials(*(run.version() for _ in range(100)))
    assert not run.buffer.park(claim, many)
    run.buffer.abandon(claim)
    assert run.claim().parked is None


def test_a_damaged_partial_says_so_and_the_prompt_can_still_be_played(new_run: NewRun) -> None:
    run = new_run().recover()
    run.buffer.abandon(parked_claim(run))
    claim = run.claim()
    assert claim.parked is not None
    run.buffer._payloads.delete([claim.parked.key])
    with pytest.raises(CorruptPayload, match="gone"):
        run.buffer.fetch_partials(claim)
    assert run.buffer.put(claim, group_for(claim, run.version())) == "ready"


def test_a_parked_payload_is_no_stray_and_one_that_was_replaced_is_deleted(new_run: NewRun) -> None:
    run = new_run().recover()
    claim = parked_claim(run)
    first = run.buffer._store.books().cards[claim.ordinal].parked_key
    run.buffer.park(claim, partials(run.version()))
    second = run.buffer._store.books().cards[claim.ordinal].parked_key
    run.buffer.abandon(claim)
    assert run.buffer._store.named([first, second]) == {second}
    assert run.buffer._payloads.get(first) is None


def test_every_way_a_token_may_end_is_counted(new_run: NewRun) -> None:
    run = new_run(on_stale="discard").recover(limit=1, per_version=2)
    run.make(2)
    trained = run.train()
    root = run.version(0, branch=0)
    filtered, failed, given_up, lost = run.claim(), run.claim(), run.claim(), run.claim()
    run.buffer.put(filtered, group_for(filtered, run.version()), filtered="zero_variance")
    run.buffer.fail(failed, "worker_error", sampled=(5, 6), data_source="arithmetic")
    run.buffer.abandon(given_up, sampled=(7,), data_source="arithmetic")
    run.buffer.renew(lost, run.version(), 9)
    ledger = run.buffer.ledger(run.branch, run.number, trained, {"arithmetic": 4})
    run.buffer.commit(run.branch, ledger)
    run.passes(61)
    run.buffer.sweep()
    stale = run.claim()
    assert run.buffer.put(stale, group_for(stale, root, root)) == "ready"
    run.number += 2
    run.advance()
    run.try_lease()
    assert fates(run) == {
        "trained": 2 * GROUP - 4,
        "masked": 4,
        "filtered/zero_variance": GROUP,
        "failed/worker_error": 11,
        "failed/abandoned": 7,
        "failed/worker_lost": 9,
        "stale/discarded": 2 * GROUP,
    }
    shares = tokens(run).wasted_by_reason()
    assert set(shares) == set(fates(run)) - {"trained"}
    assert tokens(run).wasted_share == pytest.approx(sum(shares.values()))


def test_a_late_group_is_counted_once_however_often_it_is_put(new_run: NewRun) -> None:
    run = new_run().recover()
    late = run.claim()
    run.passes(61)
    run.buffer.sweep()
    index = run.buffer._store.books().cards[late.ordinal].index
    for _ in range(2):
        assert (
            run.buffer._store.put(late.ordinal, late.token, "payload:x:0.1:y", index, run.buffer._limits)[0] == "fenced"
        )
    assert run.audit()["fenced"] == 1
    run.buffer._store.forget(["payload:x:0.1:y"])


def test_what_an_older_checkpoint_takes_back_was_sampled_in_vain(new_run: NewRun) -> None:
    run = new_run().recover(limit=1, per_version=1)
    run.make(1)
    ledger = run.checkpoint(run.train())
    run.make(1)
    run.checkpoint([0, *run.train()])
    run.recover(limit=1, per_version=1, ledger=ledger, number=1)
    assert fates(run) == {"trained": GROUP, "rolled_back": GROUP}


def test_what_the_lineage_trained_counts_although_the_store_lost_it(new_run: NewRun) -> None:
    run = new_run().recover(limit=1, per_version=1)
    run.make(1)
    ledger = run.checkpoint(run.train())
    fresh = new_run().recover(limit=1, per_version=1, ledger=ledger, number=1)
    assert fates(fresh) == {"trained": GROUP}
    assert tokens(fresh).sampled == GROUP


def test_tokens_of_an_evaluation_end_evaluated_and_are_counted_once(new_run: NewRun) -> None:
    run = new_run().recover()
    evaluation = run.buffer.open_evaluation(run.version(), num_prompts=2, group_size=2)
    for _ in range(2):
        claim = evaluation.reserve("w")
        assert isinstance(claim, Claim)
        evaluation.put(claim, group_for(claim, run.version()))
    run.buffer.close_evaluation()
    run.buffer.close_evaluation()
    assert fates(run) == {"evaluated": 2 * GROUP}
    run.buffer.open_evaluation(run.version(), num_prompts=1, group_size=2)
    run.recover()
    assert fates(run) == {"evaluated": 2 * GROUP}


def test_a_trainer_whose_branch_was_opened_again_after_a_lost_tail_is_fenced(new_run: NewRun) -> None:
    run = new_run().recover(limit=3)
    second, third = run.attach(), run.attach()
    settings = {"number": 0, "limit": 3, "groups_per_version": 2}
    branch = second.recover("second", None, **settings)
    # The store lost the recover above: as if it had never been, the next trainer opens the same branch.
    store = second._store
    ledger = store.books()
    assert ledger.nonce == "second"
    third._nonces[branch] = "third"
    assert second.lease(branch, 0, 1, 2)
    with pytest.raises(Fenced):
        third.lease(branch, 0, 1, 2)
    for call in (
        lambda: third.advance(branch, 1, limit=3, groups_per_version=2),
        lambda: third.give_back(branch, [0]),
        lambda: third.ledger(branch, 0, []),
    ):
        with pytest.raises(Fenced):
            call()


def test_a_cluster_that_dies_at_once_is_excused_whole_though_its_deadlines_pass_one_by_one(new_run: NewRun) -> None:
    run = new_run().recover(limit=3, per_version=4)
    for _ in range(16):
        run.claim()
        run.passes(1)
    run.passes(45)
    swept = run.buffer.sweep()
    assert swept.excused
    assert len(swept.expired) == 16
    assert {card.failures for card in run.buffer._store.books().cards.values()} == {0}


def test_one_worker_of_many_that_falls_silent_pays_and_the_others_keep_their_claims(new_run: NewRun) -> None:
    run = new_run().recover(limit=3, per_version=4)
    claims = run.claims()
    run.passes(45)
    for claim in claims[1:]:
        run.buffer.renew(claim)
    run.passes(16)
    swept = run.buffer.sweep()
    assert swept.expired == (claims[0].ordinal,)
    assert not swept.excused
    assert run.buffer._store.books().cards[claims[0].ordinal].failures == 1


def test_a_group_of_a_branch_that_the_ledger_lost_is_judged_by_the_next_recover(new_run: NewRun) -> None:
    run = new_run(max_stale=0).recover(limit=0, per_version=1)
    claim = run.claim()
    # The store has lost the recover of branch 7, whose head the servers hold already.
    of_lost = run.version(13, branch=7)
    assert run.buffer.park(claim, partials(of_lost))
    run.buffer.abandon(claim)
    again = run.claim()
    assert again.parked is not None
    assert run.buffer.put(again, group_for(again, of_lost)) == "ready"
    run.buffer.recover("next", None, number=0, limit=0, groups_per_version=1, seen=7)
    assert run.counts("ready") == (1,)


def test_a_clock_that_goes_back_does_not_lengthen_the_wait_for_a_last_chance_group(new_run: NewRun) -> None:
    run = new_run(policy="wait", wait_deadline_s=30).recover(limit=1, per_version=1, number=5)
    slow = run.claim()
    run.buffer.renew(slow, run.version(4))
    run.make(1)
    assert isinstance(held := run.try_lease(), NotReady)
    assert held.waiting_for
    run.passes(-86400)
    assert isinstance(again := run.try_lease(), NotReady)
    assert [group.age_s for group in again.waiting_for] == [0]
    run.passes(31)
    run.buffer.renew(slow, run.version(4))
    assert isinstance(run.try_lease(), Leased)


def test_a_group_that_mask_would_train_on_is_never_doomed(new_run: NewRun) -> None:
    run = new_run(policy="drop", cancel_doomed=True, on_stale="mask").recover(limit=1, per_version=1, number=5)
    claim = run.claim()
    run.buffer.renew(claim, run.version(4))
    run.number = 6
    run.advance()
    assert run.buffer.renew(claim, run.version(4)).go_on


@pytest.mark.timeout(60)
def test_a_lease_may_block_until_its_last_group_is_in(new_run: NewRun) -> None:
    run = new_run().recover(limit=1, per_version=2)
    worker, claims = run.attach(), run.claims()
    refused = run.try_lease()
    assert isinstance(refused, NotReady)
    assert refused.num_missing == 2

    def put_two() -> None:
        for claim in claims[:2]:
            worker.put(claim, group_for(claim, run.version()))

    with ThreadPoolExecutor(1) as threads:
        putting = threads.submit(put_two)
        leased = run.buffer.lease(run.branch, run.number, 1, 2, after=refused, wait_s=300)
        putting.result()
    assert isinstance(leased, Leased)
    assert [entry.ordinal for entry in leased.entries] == [0, 1]


@pytest.mark.timeout(60)
def test_a_lease_does_not_wait_for_what_came_in_together(new_run: NewRun) -> None:
    run = new_run().recover(limit=1, per_version=3)
    refused = run.try_lease(3)
    assert isinstance(refused, NotReady)
    worker, claims = run.attach(), run.claims()
    for claim in claims[:3]:
        worker.put(claim, group_for(claim, run.version()))
    leased = run.buffer.lease(run.branch, run.number, 1, 3, after=refused, wait_s=300)
    assert isinstance(leased, Leased)


def test_a_lease_that_blocks_in_vain_says_what_is_missing(new_run: NewRun) -> None:
    run = new_run().recover(limit=1, per_version=2)
    refused = run.try_lease()
    assert isinstance(refused, NotReady)
    again = run.buffer.lease(run.branch, run.number, 1, 2, after=refused, wait_s=0.05)
    assert isinstance(again, NotReady)
    assert again.num_missing == 2
