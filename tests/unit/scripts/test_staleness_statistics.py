"""Ratios of paired means, collapses and alarms against cases worked out by hand."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.benches.staleness_cases.statistics import collapse, first_alarm, foretold, paired_ratio

SCORES = st.dictionaries(st.integers(0, 9), st.floats(0.1, 1.0), min_size=1)


def test_the_ratio_is_of_means_over_the_seeds_that_both_have() -> None:
    ratio = paired_ratio({0: 0.9, 1: 0.7, 2: 0.1}, {0: 1.0, 1: 1.0})
    assert ratio is not None
    assert (ratio.value, ratio.num_seeds) == (pytest.approx(0.8), 2)
    assert (ratio.low, ratio.high) == (pytest.approx(0.7), pytest.approx(0.9))


def test_pairs_that_differ_by_one_factor_leave_no_uncertainty() -> None:
    under = {seed: 0.1 * (seed + 1) for seed in range(8)}
    ratio = paired_ratio({seed: 0.9 * score for seed, score in under.items()}, under)
    assert ratio is not None
    assert (ratio.low, ratio.high) == (pytest.approx(0.9), pytest.approx(0.9))


def test_without_a_pair_or_over_nothing_there_is_no_ratio() -> None:
    assert paired_ratio({0: 1.0}, {1: 1.0}) is None
    assert paired_ratio({0: 1.0}, {0: 0.0}) is None


@given(SCORES, SCORES)
def test_the_interval_holds_the_ratio(over: dict[int, float], under: dict[int, float]) -> None:
    ratio = paired_ratio(over, under)
    if ratio is not None and ratio.num_seeds > 3:
        assert ratio.low <= ratio.value + 1e-9
        assert ratio.high >= ratio.value - 1e-9


def test_a_run_has_collapsed_where_it_is_below_half_of_its_best() -> None:
    assert collapse([(0, 0.2), (10, 0.8), (20, 0.41), (30, 0.39), (40, 0.9)]) == 30
    assert collapse([(0, 0.2), (10, 0.15), (20, 0.8)]) is None
    assert collapse([]) is None


def test_an_alarm_is_of_the_mean_of_the_last_steps() -> None:
    assert first_alarm([1.0, 1.0, 0.1, 0.1, 0.1], threshold=0.5) == 4
    assert first_alarm([1.0, 0.4, 1.0], threshold=0.5) is None
    assert first_alarm([0.1, 0.1], threshold=0.5) is None


def result(eta: int, scores: list[float], ess: list[float]) -> dict[str, Any]:
    return {"eta": eta, "curve": list(enumerate(scores)), "steps": [{"ess": value} for value in ess]}


def test_a_forecast_is_judged_by_warnings_before_and_alarms_without_a_collapse() -> None:
    found = foretold(
        [
            result(8, [0.8] * 6 + [0.1], [0.9, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2]),  # alarm 3, collapse 6
            result(8, [0.8, 0.1, 0.1, 0.1], [0.9, 0.9, 0.1, 0.1]),  # alarm after the collapse
            result(4, [0.8] * 4, [0.1] * 4),  # a false alarm
            result(4, [0.8] * 4, [0.9] * 4),
            result(0, [0.8, 0.1], [0.1] * 4),  # fresh: not judged
            result(4, [0.8] * 4, []),  # no step was trained
        ],
        threshold=0.5,
    )
    assert (found.collapsed, found.warned, found.ahead) == (2, 1, (3,))
    assert (found.sound, found.false_alarms) == (3, 1)
