"""Length classes hold every length once, and the mean of cut answers is that of the product-limit estimate."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.report.answer_lengths import AnswerLengths, class_of, middle_of


def counted(finished: list[int], cut: list[int] = ()) -> AnswerLengths:  # type: ignore[assignment]  # never changed
    lengths = AnswerLengths()
    lengths.add(finished)
    lengths.add(cut, cut=True)
    return lengths


def product_limit(finished: list[int], cut: list[int]) -> float:
    """Mean by the textbook, exactly at every length, the longest answer counted as an end."""
    times = sorted([(t, True) for t in finished] + [(t, False) for t in cut], key=lambda one: (one[0], not one[1]))
    surviving, mean, at_risk = 1.0, 0.0, len(times)
    for time, ends in times:
        if ends:
            ending = surviving / at_risk
            mean, surviving = mean + ending * time, surviving - ending
        at_risk -= 1
    return mean + surviving * times[-1][0]


def test_classes_are_two_to_an_octave() -> None:
    assert sorted({class_of(n) for n in range(65)}) == [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]


@given(st.integers(0, 1 << 40))
def test_a_class_is_named_by_its_largest_length(length: int) -> None:
    largest = class_of(length)
    assert largest >= length
    assert class_of(largest) == largest
    assert length < 4 or largest < length * 1.5
    assert class_of(largest + 1) > largest


@pytest.mark.parametrize("largest", [1, 2, 3, 4, 6, 8, 12, 16, 1536, 2048])
def test_the_middle_of_a_class_is_the_mean_of_its_lengths(largest: int) -> None:
    assert middle_of(largest) == np.mean([n for n in range(largest + 1) if class_of(n) == largest])


@given(st.lists(st.integers(0, 5000), min_size=1))
def test_without_cuts_the_mean_is_exact(finished: list[int]) -> None:
    estimate = counted(finished).mean()
    assert estimate is not None
    assert estimate.tokens == pytest.approx(np.mean(finished))
    assert not estimate.at_least


@given(st.lists(st.integers(1, 5000), min_size=1), st.lists(st.integers(1, 5000), min_size=1))
def test_the_estimate_is_never_far_below_what_was_seen(finished: list[int], cut: list[int]) -> None:
    # A cut answer gives its share to longer ones, so the estimate is at least the plain mean, up to a class's width.
    estimate = counted(finished, cut).mean()
    assert estimate is not None
    assert estimate.tokens > np.mean([*finished, *cut]) * 0.6


def test_a_hand_worked_example() -> None:
    # 2 ends, 4 is cut, 6 ends: two thirds of the weight is left after 2, and all of it ends at 6.
    estimate = counted([2, 6], [4]).mean()
    assert estimate is not None
    assert product_limit([2, 6], [4]) == pytest.approx(2 / 3 + 4)
    assert estimate.tokens == pytest.approx(2 / 3 + 4, rel=0.1)
    assert not estimate.at_least


def test_lengths_cut_at_random_moments_give_back_the_true_mean() -> None:
    rng = np.random.default_rng(5)
    lengths = np.ceil(rng.lognormal(5, 0.7, 20_000)).astype(int)
    cuts = np.ceil(rng.uniform(20, 1500, 20_000)).astype(int)
    finished, cut = lengths[lengths <= cuts].tolist(), cuts[lengths > cuts].tolist()
    estimate = counted(finished, cut).mean()
    assert estimate is not None
    assert np.mean(finished) < 0.95 * np.mean(lengths), "finished ones alone are too short"
    assert estimate.tokens == pytest.approx(np.mean(lengths), rel=0.02)
    assert estimate.tokens == pytest.approx(product_limit(finished, cut), rel=0.02)


def test_where_the_longest_were_all_cut_the_mean_is_a_lower_bound() -> None:
    estimate = counted([10, 10], [100]).mean()
    assert estimate is not None
    assert estimate.at_least
    assert estimate.tokens < 100


def test_no_answers_have_no_mean() -> None:
    assert AnswerLengths().mean() is None


def test_counts_of_two_processes_add_up_and_survive_json() -> None:
    one, other = counted([3, 700], [9]), counted([3], [8, 8])
    both = AnswerLengths.from_json(json.loads(json.dumps(one.to_json())))
    both.merge(AnswerLengths.from_json(json.loads(json.dumps(other.to_json()))))
    assert both == counted([3, 700, 3], [9, 8, 8])


def test_counts_do_not_grow_with_the_answers() -> None:
    lengths = counted(list(range(1, 5000)) * 3)
    assert len(lengths.to_json()["finished"]) == 25
