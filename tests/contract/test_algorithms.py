"""What every algorithm promises: finite results, no influence of masked tokens, and no influence of the split."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from torch import Tensor

from asyncrl.algorithms import ALGORITHMS, Algorithm
from asyncrl.algorithms.aggregation import AGGREGATIONS
from asyncrl.algorithms.base import Selection
from asyncrl.algorithms.covariance import clip_cov_selected, kl_cov_selected
from asyncrl.algorithms.rejection import minimum_variance_selected
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES
from tests.support.algorithm_batch import ROWS, Batch
from tests.support.algorithm_promises import PROMISES, complete, split_changes_nothing


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_keeps(name: str, promise: Callable[[Algorithm], None]) -> None:
    promise(complete(ALGORITHMS[name]))


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


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@seed(0)
@settings(max_examples=10, deadline=None, database=None)
@given(number=st.integers(0, 10_000), split=splits())
def test_any_split_over_ranks_and_micro_batches_gives_the_same_step(
    name: str, number: int, split: list[list[Tensor]]
) -> None:
    split_changes_nothing(complete(ALGORITHMS[name]), number, split)


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("correction", sorted(CORRECTIONS))
@seed(1)
@settings(max_examples=6, deadline=None, database=None)
@given(number=st.integers(0, 10_000), split=splits())
def test_any_split_is_the_same_in_every_aggregation_and_correction(
    mode: str, correction: str, number: int, split: list[list[Tensor]]
) -> None:
    row = replace(complete(ALGORITHMS["grpo"]), aggregation=mode, correction=CORRECTIONS[correction])
    split_changes_nothing(row, number, split)


MANY_SELECTED = {
    "clip_cov": Selection(
        partial(clip_cov_selected, share=0.3, lower=-9.0, upper=9.0, low=0.2, high=0.2), rejects=False
    ),
    "kl_cov": Selection(partial(kl_cov_selected, share=0.3), rejects=False),
    "m2po": Selection(partial(minimum_variance_selected, threshold=0.01), rejects=True),
}


@pytest.mark.parametrize("name", sorted(MANY_SELECTED))
@seed(2)
@settings(max_examples=10, deadline=None, database=None)
@given(number=st.integers(0, 10_000), split=splits())
def test_any_split_is_the_same_where_a_rule_over_the_whole_mini_batch_selects_many_tokens(
    name: str, number: int, split: list[list[Tensor]]
) -> None:
    row = replace(complete(ALGORITHMS[name]), selection=MANY_SELECTED[name])
    selected = Batch(number).selected(row, Batch(number).advantages(row))
    assert selected is not None
    assert selected.sum() > 1
    split_changes_nothing(row, number, split)


def test_every_row_is_named_as_in_the_table_and_names_its_source() -> None:
    for name, row in ALGORITHMS.items():
        assert row.name == name
        assert row.source
        assert row.aggregation in AGGREGATIONS
        assert isinstance(row.loss, partial)
        assert row.loss.func in [choice.loss.func for choice in LOSSES.values()]
