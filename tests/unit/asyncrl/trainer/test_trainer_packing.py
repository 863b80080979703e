"""Which rows are laid together: every row once, within the budget, in few micro-batches, on a grid that stays small."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.trainer.packing import GRID_TO_BUDGET, packed, padded

LENGTHS = st.lists(st.integers(1, 60), max_size=80).map(lambda lengths: np.array(lengths, dtype=np.int64))


@settings(max_examples=80, deadline=None)
@given(LENGTHS, st.integers(1, 64))
def test_every_row_has_one_place_and_no_micro_batch_is_over_the_budget(lengths, budget):
    for fill, size in ((packed, lambda part: part.sum()), (padded, lambda part: part.max() * len(part))):
        parts = fill(lengths, budget)
        assert sorted(np.concatenate([[], *parts]).astype(int).tolist()) == list(range(len(lengths)))
        assert all(size(lengths[part]) <= budget or len(part) == 1 for part in parts)


@settings(max_examples=80, deadline=None)
@given(LENGTHS, st.integers(1, 64))
def test_a_long_row_does_not_make_the_grid_of_many_short_ones_wide(lengths, budget):
    for part in packed(lengths, budget):
        assert len(part) * lengths[part].max() <= GRID_TO_BUDGET * budget or len(part) == 1


def fewest(lengths, rooms, budget):
    """The smallest number of micro-batches, by trying them all; `rooms` are those that are begun."""
    if not lengths:
        return len(rooms)
    first, rest = lengths[0], lengths[1:]
    choices = {room: i for i, room in enumerate(rooms) if room >= first}  # equal rooms are one choice
    counts = [fewest(rest, [r - first * (j == i) for j, r in enumerate(rooms)], budget) for i in choices.values()]
    return min([*counts, fewest(rest, [*rooms, budget - first], budget)])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(8, 64), max_size=7), st.integers(64, 128))
def test_hardly_more_micro_batches_than_are_needed(lengths, budget):
    assert len(packed(np.array(lengths, dtype=np.int64), budget)) <= 11 / 9 * fewest(lengths, [], budget) + 6 / 9


@pytest.mark.parametrize(
    ("lengths", "budget", "parts"),
    [
        ([6, 5, 4, 3, 2], 10, [[0, 2], [1, 3, 4]]),
        ([2, 12, 3], 10, [[1], [2, 0]]),
        ([5, 5, 5, 5], 10, [[0, 1], [2, 3]]),
        ([], 10, []),
    ],
    ids=["filled to the brim", "longer than the budget", "equal rows keep their order", "no rows"],
)
def test_what_first_fit_decreasing_gives(lengths, budget, parts):
    assert [part.tolist() for part in packed(np.array(lengths, dtype=np.int64), budget)] == parts


def test_heavy_tailed_lengths_leave_little_room():
    lengths = np.clip(np.random.default_rng(0).lognormal(5.5, 1.0, 512), 64, 2048).astype(np.int64)
    packs, pads = packed(lengths, 4096), padded(lengths, 4096)
    assert len(packs) <= 1.02 * lengths.sum() / 4096 + 1
    assert sum(len(part) * int(lengths[part].max()) for part in pads) > lengths.sum()
