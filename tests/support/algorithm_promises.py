"""What every algorithm promises, as functions of one: a row of the table, or one that a test makes."""

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from asyncrl.algorithms import Algorithm
from asyncrl.algorithms.aggregation import Denominators, count
from asyncrl.algorithms.measures import add, finish, outermost
from tests.support.algorithm_batch import GRIDS, GROUP, ROWS, WIDTH, Batch, run

BASELINE_FROM_ELSEWHERE = {"reinforce_pp", "ppo_gae", "remax", "otb", "opd"}
"""Algorithms whose baseline is not a number of the group, so that equal rewards may still train something."""


def complete(row: Algorithm) -> Algorithm:
    """With every term of the loss switched on, so that each is held to the promises."""
    return replace(row, norm_length=WIDTH, kl_coef=0.05, entropy_coef=0.01, distill_coef=0.1)


def loss_and_gradient_are_finite_and_some_token_is_trained(algorithm: Algorithm) -> None:
    for number in range(5):
        objective, grad = run(algorithm, Batch(number))
        assert objective.loss.isfinite()
        assert grad.isfinite().all()
        assert grad.abs().sum() > 0


def policies_that_are_worlds_apart_give_finite_numbers(algorithm: Algorithm) -> None:
    """Also a log ratio of a hundred and more at an advantage of 0 (B087)."""
    for gap in (30.0, -30.0, 3000.0, -3000.0):
        batch = Batch(1)
        batch.logprobs = batch.proximal + gap
        batch.sampler = batch.proximal - gap
        objective, grad = run(algorithm, batch)
        assert objective.loss.isfinite()
        assert grad.isfinite().all()
        assert all(value == value for value in finish(objective.metrics, objective.extremes).values())


def masked_tokens_get_no_gradient_and_no_advantage(algorithm: Algorithm) -> None:
    batch = Batch(2)
    _, grad = run(algorithm, batch)
    assert (grad[~batch.mask] == 0).all()
    assert (batch.advantages(algorithm)[~batch.mask] == 0).all()


def what_stands_at_masked_positions_has_no_influence(algorithm: Algorithm) -> None:
    clean = Batch(3)
    objective, grad = run(algorithm, clean)
    for junk in (torch.nan, torch.inf, -torch.inf, 1e30):
        dirty = Batch(3)
        for name in GRIDS:
            getattr(dirty, name)[~dirty.mask] = junk
        dirty_objective, dirty_grad = run(algorithm, dirty)
        assert torch.equal(objective.loss, dirty_objective.loss)
        assert torch.equal(grad, dirty_grad)
        got = finish(dirty_objective.metrics, dirty_objective.extremes)
        assert finish(objective.metrics, objective.extremes) == got


def padding_to_the_right_and_below_changes_nothing(algorithm: Algorithm) -> None:
    """One sample in a wider tensor weighs as much as before (B079)."""
    batch = Batch(4)
    objective, grad = run(algorithm, batch)
    padded_objective, padded_grad = run(algorithm, batch.padded(columns=5, rows=GROUP))
    torch.testing.assert_close(padded_objective.loss, objective.loss)
    torch.testing.assert_close(padded_grad[:ROWS, :WIDTH], grad)
    assert (padded_grad[ROWS:] == 0).all()


def no_valid_token_gives_zero_and_a_zero_gradient(algorithm: Algorithm) -> None:
    batch = Batch(5)
    batch.mask[:] = False
    objective, grad = run(algorithm, batch)
    assert objective.loss == 0
    assert (grad == 0).all()
    assert finish(objective.metrics, objective.extremes) == {}


def no_rows_or_no_columns_give_zero(algorithm: Algorithm) -> None:
    for rows, width in ((0, 5), (4, 0), (0, 0)):
        batch = Batch(6, rows=rows, width=width)
        objective, grad = run(algorithm, batch)
        assert objective.loss == 0
        assert grad.shape == (rows, width)
        assert batch.advantages(algorithm).shape == (rows, width)


def a_nan_at_a_valid_token_is_left_out_and_counted_once(algorithm: Algorithm) -> None:
    algorithm = replace(algorithm, kl_coef=0.0, entropy_coef=0.0, distill_coef=0.0)
    reads_sampler = algorithm.correction is not None or "sampler_BT" in algorithm.columns
    for where in ("logprobs", "proximal", "sampler") if reads_sampler else ("logprobs", "proximal"):
        batch = Batch(7)
        row, column = batch.mask.nonzero()[3].tolist()
        getattr(batch, where)[row, column] = torch.nan
        objective, grad = run(algorithm, batch)
        num_bad, num_tokens = objective.metrics["nonfinite_tokens"]
        assert (int(num_bad), int(num_tokens)) == (1, int(batch.mask.sum())), where
        assert objective.loss.isfinite()
        assert grad.isfinite().all()
        assert grad[row, column] == 0


def equal_rewards_train_nothing_where_a_group_is_the_baseline(algorithm: Algorithm) -> None:
    """Rewards of 0.1, whose deviation in floats is not 0 (B073)."""
    if algorithm.name in BASELINE_FROM_ELSEWHERE:
        return
    batch = Batch(8)
    batch.rewards[:] = 0.1
    assert batch.advantages(algorithm).abs().max() == 0


def a_row_alone_in_its_group_trains_nothing_where_a_group_is_the_baseline(algorithm: Algorithm) -> None:
    """It was compared with nothing, and the deviation of one number is NaN (B072)."""
    batch = Batch(12)
    batch.mask[:] = True
    alone = batch.part(torch.tensor([0]))
    alone.rewards[:] = 1.0
    advantages = alone.advantages(algorithm)
    assert advantages.isfinite().all()
    if algorithm.name not in BASELINE_FROM_ELSEWHERE:
        assert (advantages == 0).all()


def a_row_without_a_score_gets_nothing_and_leaves_the_others_as_if_it_were_not_there(algorithm: Algorithm) -> None:
    """A reward that failed is no number in its group's statistics (B074, B075, B076)."""
    batch = Batch(9)
    batch.mask[:] = True
    batch.rewards = torch.tensor([1.0, 0.0, torch.nan, 2.0, 0.0, 1.0, 1.0, 0.0])
    without = torch.tensor([0, 1, 3, 4, 5, 6, 7])
    got = batch.advantages(algorithm)
    torch.testing.assert_close(got[without], batch.part(without).advantages(algorithm))
    assert (got[2] == 0).all()


def the_order_of_rows_and_the_names_of_groups_do_not_matter(algorithm: Algorithm) -> None:
    batch = Batch(10)
    order = torch.tensor([5, 0, 7, 2, 1, 6, 3, 4])
    shuffled = batch.part(order)
    shuffled.group_ids = -7 * shuffled.group_ids - 3
    torch.testing.assert_close(shuffled.advantages(algorithm), batch.advantages(algorithm)[order])


def ranks_with_whole_groups_get_the_advantages_of_the_whole_batch(algorithm: Algorithm) -> None:
    batch = Batch(11)
    halves = [batch.part(torch.arange(GROUP)), batch.part(torch.arange(GROUP, ROWS))]

    def on_rank(half: Batch) -> Callable[[Callable[[Tensor], Tensor]], Tensor]:
        columns = half.columns(algorithm)
        return lambda total: algorithm.advantage(half.rewards, half.mask, half.group_ids, total=total, **columns)

    got = _on_ranks([on_rank(half) for half in halves])
    torch.testing.assert_close(torch.cat(got), batch.advantages(algorithm))


def split_changes_nothing(algorithm: Algorithm, number: int, split: list[list[Tensor]]) -> None:
    """The step of the rows as they are dealt out to ranks, and there to micro-batches, is that of all rows at once.

    Neither a mean of means nor a second division by the number of parts is (B077, B078).
    """
    batch = Batch(number)
    whole, whole_grad = run(algorithm, batch)
    denominators = Denominators(*count(batch.mask), dp_size=len(split))
    parts = [[run(algorithm, batch, rows=rows, denominators=denominators) for rows in rank] for rank in split]
    # A rank sums the gradients of its micro-batches, and the ranks average theirs.
    grads = [torch.stack([grad for _, grad in rank]).sum(dim=0) for rank in parts]
    torch.testing.assert_close(torch.stack(grads).mean(dim=0), whole_grad, rtol=1e-4, atol=1e-6)
    losses = [torch.stack([objective.loss for objective, _ in rank]).sum() for rank in parts]
    torch.testing.assert_close(torch.stack(losses).mean(), whole.loss, rtol=1e-4, atol=1e-5)
    objectives = [objective for rank in parts for objective, _ in rank]
    got = finish(add(o.metrics for o in objectives), outermost(o.extremes for o in objectives))
    assert got == pytest.approx(finish(whole.metrics, whole.extremes), rel=1e-4, abs=1e-5)
    assert got["loss/total"] == pytest.approx(float(whole.loss.detach()), rel=1e-4, abs=1e-5)


def _on_ranks(calls: list[Callable[[Callable[[Tensor], Tensor]], Tensor]]) -> list[Tensor]:
    """Runs each call in a thread, with a `total` that sums over all of them."""
    barrier = threading.Barrier(len(calls), timeout=20)
    shared: list[Tensor] = [torch.zeros(0)] * len(calls)
    results: list[Tensor] = [torch.zeros(0)] * len(calls)

    def rank(number: int) -> None:
        def total(values: Tensor) -> Tensor:
            shared[number] = values
            barrier.wait()
            summed = torch.stack(shared).sum(dim=0)
            barrier.wait()
            return summed

        results[number] = calls[number](total)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


PROMISES: tuple[Callable[[Algorithm], None], ...] = (
    loss_and_gradient_are_finite_and_some_token_is_trained,
    policies_that_are_worlds_apart_give_finite_numbers,
    masked_tokens_get_no_gradient_and_no_advantage,
    what_stands_at_masked_positions_has_no_influence,
    padding_to_the_right_and_below_changes_nothing,
    no_valid_token_gives_zero_and_a_zero_gradient,
    no_rows_or_no_columns_give_zero,
    a_nan_at_a_valid_token_is_left_out_and_counted_once,
    equal_rewards_train_nothing_where_a_group_is_the_baseline,
    a_row_alone_in_its_group_trains_nothing_where_a_group_is_the_baseline,
    a_row_without_a_score_gets_nothing_and_leaves_the_others_as_if_it_were_not_there,
    the_order_of_rows_and_the_names_of_groups_do_not_matter,
    ranks_with_whole_groups_get_the_advantages_of_the_whole_batch,
)
