"""Metrics of micro-batches and ranks are summed as pairs and divided once."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.metrics.reduce import Pairs

numbers = st.floats(-1e6, 1e6)


def test_a_mean_is_weighted_by_its_counts() -> None:
    pairs = Pairs()
    pairs.add("actor/pg_clipfrac", 1.0, count=1)
    pairs.add("actor/pg_clipfrac", 0.0, count=3)
    assert pairs.means() == {"actor/pg_clipfrac": 0.25}


def test_the_micro_batch_without_a_token_does_not_count() -> None:
    pairs = Pairs()
    pairs.add("kl", math.nan, count=0)
    pairs.add_sum("entropy", 0.0, 0)
    assert pairs.means() == {}


@given(st.lists(st.tuples(numbers, st.integers(1, 9)), min_size=1, max_size=8), st.integers(0, 8))
def test_the_result_does_not_depend_on_how_the_parts_were_split(parts: list[tuple[float, int]], cut: int) -> None:
    whole, left, right = Pairs(), Pairs(), Pairs()
    for index, (value, count) in enumerate(parts):
        for pairs in (whole, left if index < cut else right):
            pairs.add("x", value, count)
            pairs.add("x/max", value, count)
            pairs.add("x_min", value, count)
    left.merge(Pairs.from_bytes(right.to_bytes()))
    assert left.means() == pytest.approx(whole.means(), rel=1e-9, abs=1e-6)
    assert left.means()["x/max"] == max(value for value, _ in parts)
    assert left.means()["x_min"] == min(value for value, _ in parts)


@pytest.mark.parametrize("values", [(math.nan, 1.0), (1.0, math.nan)])
def test_a_nan_is_seen_whoever_comes_first(values: tuple[float, float]) -> None:
    pairs = Pairs()
    for value in values:
        pairs.add("ratio/max", value)
        pairs.add("ratio", value)
    assert all(math.isnan(value) for value in pairs.means().values())


def test_an_extreme_has_no_sum() -> None:
    with pytest.raises(ValueError, match="extreme"):
        Pairs().add_sum("lag_max", 1.0, 1)


@pytest.mark.parametrize("count", [-1.0, math.nan, math.inf])
def test_a_count_that_is_none_is_refused(count: float) -> None:
    with pytest.raises(ValueError, match="count"):
        Pairs().add("x", 1.0, count)


@pytest.mark.parametrize("blob", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x81\xa1x\x01"])
def test_bytes_of_something_else_are_refused(blob: bytes) -> None:
    with pytest.raises(ValueError, match="not metrics"):
        Pairs.from_bytes(blob)
