"""Where a resumed run goes on: the small inputs of other systems' cases, on both stores (B159 to B165).

Position is a set of closed ordinals and nothing else: an ordinal is a prompt, whatever its epoch, its batch or its
number of answers, and `PromptOrder` says which row it is.
"""

import pytest

from asyncrl.rollout.prompts import PromptOrder
from buffer import Claim, Ledger
from tests.contract.conftest import NewRun
from tests.support.buffer_run import BufferRun
from tests.support.groups import group_for


def steps(run: BufferRun, count: int) -> list[int]:
    """Fill the window, train so many steps; the ordinals in the order of training."""
    trained = []
    for _ in range(count):
        for claim in run.claims():
            run.buffer.put(claim, group_for(claim, run.version()))
        trained += run.train()
    return trained


def test_a_resume_at_the_end_of_an_epoch_trains_the_next_one(new_run: NewRun) -> None:
    """B159: eight rows, batches of two, a checkpoint at step 4 of 8: four more steps, and each row is seen twice."""
    run, order = new_run(order="ordinal").recover(limit=0, per_version=2), PromptOrder(8, seed=3, shuffle=True)
    first = steps(run, 4)
    run.recover(limit=0, per_version=2, ledger=run.checkpoint(first), number=4)
    second = steps(run, 4)
    assert run.number == 8
    assert sorted(order.index(o) for o in first) == sorted(order.index(o) for o in second) == list(range(8))


def test_a_dropped_group_does_not_pin_the_cursor(new_run: NewRun) -> None:
    """B160: 150 prompts, number 2 is dropped as stale, all others are trained: the cursor is 150, trained are 149."""
    run = new_run(on_stale="discard", policy="drop").recover(limit=1, per_version=50)
    claims = [run.claim() for _ in range(3)]
    late = claims.pop()
    for claim in claims:
        run.buffer.put(claim, group_for(claim, run.version()))
    version, trained = run.version(), steps(run, 2)
    assert run.buffer.put(late, group_for(late, version)) == "stale", "two versions late at a limit of one"
    assert run.counts("discarded") == (1,)
    trained += run.train(49)
    ledger = run.checkpoint(trained)
    assert (ledger.watermark, ledger.below["consumed"], ledger.below["discarded"]) == (150, 149, 1)
    run.recover(limit=1, per_version=50, ledger=ledger, number=3)
    assert run.claim().ordinal == 150


def test_what_was_generated_but_not_trained_is_trained_after_a_restart(new_run: NewRun) -> None:
    """B161: ids 0 to 7 in batches of two, four generated; checkpoint after 0 and 1 with 2 and 3 in the buffer."""
    run = new_run(order="ordinal").recover(limit=1, per_version=2)
    run.make(4)
    ledger = run.checkpoint(run.train())
    run.recover(limit=1, per_version=2, ledger=ledger, number=1)
    assert run.counts("ready") == (2,)
    assert steps(run, 3) == [2, 3, 4, 5, 6, 7]
    empty = new_run(order="ordinal").recover(limit=1, per_version=2, ledger=ledger, number=1)
    assert steps(empty, 3) == [2, 3, 4, 5, 6, 7], "with the buffer lost they are generated again"


def test_position_counts_prompts_and_not_their_answers(new_run: NewRun) -> None:
    """B162: four answers a prompt, 32 samples trained: the next prompt is number 8, whatever a group's size was."""
    run = new_run().recover(limit=0, per_version=8)
    for claim in run.claims():
        answers = (1.0, 0.0, None, 1.0) if claim.ordinal else (1.0, 0.0)
        run.buffer.put(claim, group_for(claim, run.version(), rewards=answers))
    ledger = run.checkpoint(run.train())
    assert ledger.watermark == 8
    run.recover(limit=0, per_version=8, ledger=ledger, number=1)
    assert run.claim().ordinal == 8


def test_the_order_of_rows_is_the_same_with_and_without_a_resume(new_run: NewRun) -> None:
    """B163: 16 rows, seed 7, two epochs straight, against a resume at step 5."""
    order = PromptOrder(16, seed=7, shuffle=True)
    straight = new_run(order="ordinal").recover(limit=0, per_version=2)
    whole = steps(straight, 16)
    resumed = new_run(order="ordinal").recover(limit=0, per_version=2)
    part = steps(resumed, 5)
    resumed.recover(limit=0, per_version=2, ledger=resumed.checkpoint(part), number=5)
    again = PromptOrder(16, seed=7, shuffle=True)
    rows = [order.index(o) for o in whole]
    assert [again.index(o) for o in part + steps(resumed, 11)] == rows
    assert rows[:16] != rows[16:], "and each epoch has an order of its own"


def test_the_first_row_after_a_resume_is_the_next_one_for_whichever_worker_asks(new_run: NewRun) -> None:
    """B164: two workers, resume at row 6 of 10: neither begins at row 0, and nothing was read before."""
    run, order = new_run().recover(limit=0, per_version=6), PromptOrder(10, seed=0, shuffle=False)
    ledger = run.checkpoint(steps(run, 1))
    early = run.attach()  # connected before the trainer is there
    run.recover(limit=0, per_version=6, ledger=ledger, number=1)
    claims = [early.reserve("loader-0"), run.attach().reserve("loader-1")]
    assert [order.index(claim.ordinal) for claim in claims if isinstance(claim, Claim)] == [6, 7]


@pytest.mark.parametrize("lost", [False, True])
def test_another_batch_size_goes_on_at_the_same_row(new_run: NewRun, lost: bool) -> None:
    """B165: a checkpoint after three batches of four, resumed with batches of six: it goes on at row 12."""
    run = new_run(order="ordinal").recover(limit=0, per_version=4)
    ledger = run.checkpoint(steps(run, 3))
    assert Ledger.from_json(ledger.to_json()).watermark == 12
    if lost:
        run = new_run(order="ordinal")
    run.recover(limit=0, per_version=6, ledger=ledger, number=3)
    assert steps(run, 1) == [12, 13, 14, 15, 16, 17]
