"""Ordinals to rows: every row once an epoch, in an order that only the seed decides."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.rollout.prompts import MixedOrder, PromptOrder


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 16, 17, 255, 1000])
def test_each_epoch_holds_every_row_once(size: int) -> None:
    order = PromptOrder(size, seed=3, shuffle=True)
    for epoch in range(3):
        assert sorted(order.index(epoch * size + i) for i in range(size)) == list(range(size))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    def epoch(seed: int, number: int) -> list[int]:
        order = PromptOrder(100, seed, shuffle=True)
        return [order.index(number * 100 + i) for i in range(100)]

    orders = [epoch(seed, number) for seed in range(3) for number in range(3)]
    assert len({tuple(order) for order in orders}) == 9
    assert all(order != sorted(order) for order in orders)


def test_the_same_ordinal_gives_the_same_row_whoever_asks_and_when() -> None:
    first, second = PromptOrder(1000, 7, True), PromptOrder(1000, 7, True)
    ordinals = [5, 0, 999, 1000, 123_456_789]
    assert [first.index(n) for n in ordinals] == [second.index(n) for n in reversed(ordinals)][::-1]
    # Fixed for ever: a resumed run with another answer would repeat and skip prompts.
    assert [first.index(n) for n in range(5)] == [477, 175, 474, 138, 35]


def test_unshuffled_rows_come_in_file_order_and_wrap() -> None:
    """No row is dropped at the end of an epoch: three rows are enough for steps of four (B097)."""
    order = PromptOrder(3, 7, shuffle=False)
    assert [order.index(n) for n in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_rows_are_spread_evenly_over_places() -> None:
    size, epochs = 8, 4000
    order = PromptOrder(size, seed=1, shuffle=True)
    first = Counter(order.index(epoch * size) for epoch in range(epochs))
    expected = epochs / size
    chi_square = sum((first[row] - expected) ** 2 / expected for row in range(size))
    assert chi_square < 24.3  # 7 degrees of freedom, p = 0.001; the seed is fixed
    pairs = Counter((order.index(epoch * size), order.index(epoch * size + 1)) for epoch in range(epochs))
    assert len(pairs) == size * (size - 1)


def test_a_huge_data_set_needs_no_table() -> None:
    order = PromptOrder(10**12, seed=0, shuffle=True)
    found = [order.index(n) for n in range(1000)]
    assert len(set(found)) == 1000
    assert max(found) > 9 * 10**11


def test_no_rows_and_negative_ordinals_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        PromptOrder(0, 0, True)
    with pytest.raises(ValueError, match="start at 0"):
        PromptOrder(1, 0, True).index(-1)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    data=st.data(),
    shuffle=st.booleans(),
)
def test_sources_are_mixed_by_weight_and_each_has_epochs_of_its_own(
    sizes: list[int], data: st.DataObject, shuffle: bool
) -> None:
    weights = data.draw(st.lists(st.sampled_from([1, 2, 0.5]), min_size=len(sizes), max_size=len(sizes)))
    order = MixedOrder(sizes, weights, seed=5, shuffle=shuffle)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    rows: list[list[int]] = [[] for _ in sizes]
    for ordinal in range(20 * len(order.cycle)):
        rows[order.source(ordinal)].append(order.index(ordinal))
    for source, found in enumerate(rows):
        whole = range(starts[source], starts[source] + sizes[source])
        for first in range(0, len(found) - sizes[source] + 1, sizes[source]):
            assert sorted(found[first : first + sizes[source]]) == list(whole)
    # A restart asks for any ordinal alone and gets what a whole run got.
    again = MixedOrder(sizes, weights, seed=5, shuffle=shuffle)
    assert [again.index(n) for n in (7, 3, 11)] == [order.index(n) for n in (7, 3, 11)]


def test_one_source_is_mixed_as_evenly_as_its_weight_says() -> None:
    order = MixedOrder([100, 100], [3, 1], seed=0, shuffle=True)
    for start in range(0, 400, 4):
        assert sum(order.source(start + i) == 0 for i in range(4)) == 3
    assert [order.index(n) % 100 for n in range(4) if order.source(n) == 0] != [
        order.index(n) % 100 for n in range(16) if order.source(n) == 1
    ][:3], "sources of one size are not drawn in one order"
    with pytest.raises(ValueError, match="start at 0"):
        order.index(-1)
