"""Weights as a schedule: exact over every cycle, and never off by a whole draw."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.data.shares import MAX_CYCLE, cycle_of, whole_weights
from asyncrl.errors import DataError

WEIGHTS = st.lists(st.sampled_from([1, 2, 3, 5, 7, 0.1, 0.25, 0.7, 1.5, 12, 40.0]), min_size=1, max_size=6)


@settings(max_examples=100, deadline=None)
@given(weights=WEIGHTS)
def test_after_any_number_of_draws_each_source_has_its_share_to_within_one(weights: list[float]) -> None:
    cycle = cycle_of(weights)
    total = sum(Fraction(repr(weight)) for weight in weights)
    shares = [Fraction(repr(weight)) / total for weight in weights]
    drawn: Counter[int] = Counter()
    most = Fraction(0)
    for number, source in enumerate(cycle + cycle, start=1):
        drawn[source] += 1
        most = max([most, *(abs(drawn[i] - number * share) for i, share in enumerate(shares))])
    assert all(drawn[i] == 2 * len(cycle) * share for i, share in enumerate(shares)), "a cycle is exact"
    assert most <= 1 - Fraction(1, max(2 * len(weights) - 2, 1))


@pytest.mark.parametrize(
    ("weights", "expected"),
    [([1.0], [1]), ([3, 1], [3, 1]), ([0.7, 0.3], [7, 3]), ([2, 4, 6.0], [1, 2, 3]), ([0.1, 0.2, 0.7], [1, 2, 7])],
)
def test_weights_are_the_decimals_that_they_are_written_as(weights: list[float], expected: list[int]) -> None:
    assert whole_weights(weights) == expected


def test_shares_that_would_take_very_long_to_come_out_are_refused() -> None:
    with pytest.raises(DataError, match=rf"only every 1000001 prompts \(at most {MAX_CYCLE}\). Use rounder weights"):
        cycle_of([1.0, 1e-6])


def test_it_is_written_down_so_that_no_version_changes_what_a_run_draws() -> None:
    assert cycle_of([3, 1]) == [0, 0, 1, 0]
    assert cycle_of([0.5, 0.3, 0.2]) == [0, 1, 0, 2, 0, 1, 0, 2, 0, 1]
