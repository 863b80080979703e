"""What every algorithm promises: finite results, no influence of masked tokens, and no influence of the split."""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from torch import Tensor

from asyncrl.algorithms import ALGORITHMS, Algorithm
from asyncrl.algorithms.aggregation import AGGREGATIONS, Denominators, count
from asyncrl.algorithms.measures import add, finish, outermost
from asyncrl.algorithms.objective import Objective, policy_objective
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES

ROWS, WIDTH, GROUP = 8, 7, 4


@pytest.fixture(params=sorted(ALGORITHMS))
def algorithm(request: pytest.FixtureRequest) -> Algorithm:
    return _complete(ALGORITHMS[request.param])


def _complete(row: Algorithm) -> Algorithm:
    """With every term of the loss switched on, so that each is held to the promises."""
    return replace(row, norm_length=WIDTH, kl_coef=0.05, entropy_coef=0.01)


class Batch:
    """A mini-batch with holes in its mask, an empty row, and policies that differ."""

    def __init__(self, number: int = 0, *, rows: int = ROWS, width: int = WIDTH) -> None:
        rng = torch.Generator().manual_seed(number)
        self.mask = torch.rand(rows, width, generator=rng) < 0.7
        self.mask[:1] = False
        self.rewards = torch.randint(0, 3, (rows,), generator=rng).float()
        self.group_ids = torch.arange(rows) // GROUP
        self.sampler = -3 * torch.rand(rows, width, generator=rng)
        self.proximal = self.sampler + 0.3 * torch.randn(rows, width, generator=rng)
        self.logprobs = self.proximal + 0.3 * torch.randn(rows, width, generator=rng)
        self.reference = self.sampler + 0.3 * torch.randn(rows, width, generator=rng)
        self.entropy = torch.rand(rows, width, generator=rng)

    def advantages(self, algorithm: Algorithm) -> Tensor:
        return algorithm.advantage(self.rewards, self.mask, self.group_ids)


def run(
    algorithm: Algorithm, batch: Batch, *, rows: Tensor | None = None, denominators: Denominators | None = None
) -> tuple[Objective, Tensor]:
    """The objective of some rows, and the gradient of the logprobs of all rows."""
    rows = torch.arange(len(batch.mask)) if rows is None else rows
    leaf = batch.logprobs.clone().requires_grad_()
    advantages = batch.advantages(algorithm)
    objective = policy_objective(
        algorithm,
        leaf[rows],
        batch.sampler[rows],
        advantages[rows],
        batch.mask[rows],
        denominators or Denominators(*count(batch.mask)),
        proximal_BT=batch.proximal[rows],
        reference_BT=batch.reference[rows],
        entropy_BT=batch.entropy[rows],
    )
    objective.loss.backward()
    assert leaf.grad is not None
    return objective, leaf.grad


@pytest.mark.parametrize("number", range(5))
def test_loss_and_gradient_are_finite_and_some_token_is_trained(algorithm: Algorithm, number: int) -> None:
    objective, grad = run(algorithm, Batch(number))
    assert objective.loss.isfinite()
    assert grad.isfinite().all()
    assert grad.abs().sum() > 0


@pytest.mark.parametrize("gap", [30.0, -30.0, 3000.0, -3000.0])
def test_policies_that_are_worlds_apart_give_finite_numbers(algorithm: Algorithm, gap: float) -> None:
    batch = Batch(1)
    batch.logprobs = batch.proximal + gap
    batch.sampler = batch.proximal - gap
    objective, grad = run(algorithm, batch)
    assert objective.loss.isfinite()
    assert grad.isfinite().all()
    assert all(value == value for value in finish(objective.metrics, objective.extremes).values())


def test_masked_tokens_get_no_gradient_and_no_advantage(algorithm: Algorithm) -> None:
    batch = Batch(2)
    _, grad = run(algorithm, batch)
    assert (grad[~batch.mask] == 0).all()
    assert (batch.advantages(algorithm)[~batch.mask] == 0).all()


@pytest.mark.parametrize("junk", [torch.nan, torch.inf, -torch.inf, 1e30])
def test_what_stands_at_masked_positions_has_no_influence(algorithm: Algorithm, junk: float) -> None:
    clean, dirty = Batch(3), Batch(3)
    for values in (dirty.logprobs, dirty.proximal, dirty.sampler, dirty.reference, dirty.entropy):
        values[~dirty.mask] = junk
    objective, grad = run(algorithm, clean)
    dirty_objective, dirty_grad = run(algorithm, dirty)
    assert torch.equal(objective.loss, dirty_objective.loss)
    assert torch.equal(grad, dirty_grad)
    assert finish(objective.metrics, objective.extremes) == finish(dirty_objective.metrics, dirty_objective.extremes)


def test_padding_to_the_right_and_below_changes_nothing(algorithm: Algorithm) -> None:
    batch, padded = Batch(4), Batch(4)
    for name in ("logprobs", "proximal", "sampler", "reference", "entropy"):
        setattr(padded, name, torch.nn.functional.pad(getattr(batch, name), (0, 5, 0, GROUP), value=-1.0))
    padded.mask = torch.nn.functional.pad(batch.mask, (0, 5, 0, GROUP))
    padded.rewards = torch.nn.functional.pad(batch.rewards, (0, GROUP), value=torch.nan)
    padded.group_ids = torch.nn.functional.pad(batch.group_ids, (0, GROUP), value=99)
    objective, grad = run(algorithm, batch)
    padded_objective, padded_grad = run(algorithm, padded)
    torch.testing.assert_close(padded_objective.loss, objective.loss)
    torch.testing.assert_close(padded_grad[:ROWS, :WIDTH], grad)
    assert (padded_grad[ROWS:] == 0).all()


def test_no_valid_token_gives_zero_and_a_zero_gradient(algorithm: Algorithm) -> None:
    batch = Batch(5)
    batch.mask[:] = False
    objective, grad = run(algorithm, batch)
    assert objective.loss == 0
    assert (grad == 0).all()
    assert finish(objective.metrics, objective.extremes) == {}


@pytest.mark.parametrize(("rows", "width"), [(0, 5), (4, 0), (0, 0)])
def test_no_rows_or_no_columns_give_zero(algorithm: Algorithm, rows: int, width: int) -> None:
    batch = Batch(6, rows=rows, width=width)
    objective, grad = run(algorithm, batch)
    assert objective.loss == 0
    assert grad.shape == (rows, width)
    assert batch.advantages(algorithm).shape == (rows, width)


@pytest.mark.parametrize("where", ["logprobs", "proximal", "sampler"])
def test_a_nan_at_a_valid_token_is_left_out_and_counted_once(algorithm: Algorithm, where: str) -> None:
    batch = Batch(7)
    row, column = batch.mask.nonzero()[3].tolist()
    getattr(batch, where)[row, column] = torch.nan
    objective, grad = run(_no_terms(algorithm), batch)
    num_bad, num_tokens = objective.metrics["nonfinite_tokens"]
    assert (int(num_bad), int(num_tokens)) == (1, int(batch.mask.sum()))
    assert objective.loss.isfinite()
    assert grad.isfinite().all()
    assert grad[row, column] == 0


def _no_terms(algorithm: Algorithm) -> Algorithm:
    return replace(algorithm, kl_coef=0.0, entropy_coef=0.0)


def test_equal_rewards_train_nothing_where_a_group_is_the_baseline(algorithm: Algorithm) -> None:
    batch = Batch(8)
    batch.rewards[:] = 0.1
    # REINFORCE++ has no groups: its baseline is the mean over the batch's tokens, equal up to rounding.
    allowed = 1e-3 if algorithm.name == "reinforce_pp" else 0.0
    assert batch.advantages(algorithm).abs().max() <= allowed


def test_a_row_without_a_score_gets_nothing_and_leaves_the_others_as_if_it_were_not_there(algorithm: Algorithm) -> None:
    batch = Batch(9)
    batch.mask[:] = True
    batch.rewards = torch.tensor([1.0, 0.0, torch.nan, 2.0, 0.0, 1.0, 1.0, 0.0])
    without = torch.tensor([0, 1, 3, 4, 5, 6, 7])
    expected = algorithm.advantage(batch.rewards[without], batch.mask[without], batch.group_ids[without])
    got = batch.advantages(algorithm)
    torch.testing.assert_close(got[without], expected)
    assert (got[2] == 0).all()


def test_the_order_of_rows_and_the_names_of_groups_do_not_matter(algorithm: Algorithm) -> None:
    batch = Batch(10)
    order = torch.tensor([5, 0, 7, 2, 1, 6, 3, 4])
    renamed = -7 * batch.group_ids[order] - 3
    got = algorithm.advantage(batch.rewards[order], batch.mask[order], renamed)
    torch.testing.assert_close(got, batch.advantages(algorithm)[order])


def test_ranks_with_whole_groups_get_the_advantages_of_the_whole_batch(algorithm: Algorithm) -> None:
    batch = Batch(11)
    halves = [torch.arange(GROUP), torch.arange(GROUP, ROWS)]
    got = _on_ranks(
        [
            lambda total, rows=rows: algorithm.advantage(
                batch.rewards[rows], batch.mask[rows], batch.group_ids[rows], total=total
            )
            for rows in halves
        ]
    )
    torch.testing.assert_close(torch.cat(got), batch.advantages(algorithm))


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


@st.composite
def splits(draw: st.DrawFn) -> list[list[Tensor]]:
    """Rows dealt out to ranks and micro-batches; some of them empty."""
    num_ranks = draw(st.integers(1, 3))
    num_micro = draw(st.integers(1, 4))
    places = draw(st.lists(st.integers(0, num_ranks * num_micro - 1), min_size=ROWS, max_size=ROWS))
    parts = [
        torch.tensor([r for r in range(ROWS) if places[r] == p], dtype=torch.int64)
        for p in range(num_ranks * num_micro)
    ]
    return [parts[rank * num_micro : (rank + 1) * num_micro] for rank in range(num_ranks)]


def _assert_split_changes_nothing(algorithm: Algorithm, number: int, split: list[list[Tensor]]) -> None:
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


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@seed(0)
@settings(max_examples=25, deadline=None, database=None)
@given(number=st.integers(0, 10_000), split=splits())
def test_any_split_over_ranks_and_micro_batches_gives_the_same_step(
    name: str, number: int, split: list[list[Tensor]]
) -> None:
    _assert_split_changes_nothing(_complete(ALGORITHMS[name]), number, split)


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("correction", sorted(CORRECTIONS))
@seed(1)
@settings(max_examples=6, deadline=None, database=None)
@given(number=st.integers(0, 10_000), split=splits())
def test_any_split_is_the_same_in_every_aggregation_and_correction(
    mode: str, correction: str, number: int, split: list[list[Tensor]]
) -> None:
    row = replace(_complete(ALGORITHMS["grpo"]), aggregation=mode, correction=CORRECTIONS[correction])
    _assert_split_changes_nothing(row, number, split)


def test_every_row_is_named_as_in_the_table_and_names_its_source() -> None:
    for name, row in ALGORITHMS.items():
        assert row.name == name
        assert row.source
        assert row.aggregation in AGGREGATIONS
        assert isinstance(row.loss, partial)
        assert row.loss.func in [choice.loss.func for choice in LOSSES.values()]
