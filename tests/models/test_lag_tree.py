"""Integers that Lua compares, against distance in random trees of versions."""

from tests.models.lag_tree import compare


def test_effective_numbers_of_both_ends_give_the_lag_in_any_tree() -> None:
    compared = compare(3000)
    assert compared.num_trees == 3000
    assert compared.wrong_if_lowest_only > 0.05, "the highest number is not needed, then"
    assert compared.understated_by_number > 0.2
