"""Placement is arithmetic: counts in, device indices out."""

import pytest

from asyncrl.errors import PreflightError
from asyncrl.placement import place


def test_without_devices_everything_is_on_the_cpu() -> None:
    placed = place(ranks=2, servers=1, tp=1, num_devices=0, shares_devices=False)
    assert placed.ranks == ((), ())
    assert placed.servers == ((),)


def test_servers_follow_the_ranks_when_devices_are_not_shared() -> None:
    placed = place(ranks=2, servers=2, tp=2, num_devices=6, shares_devices=False)
    assert placed.ranks == ((0,), (1,))
    assert placed.servers == ((2, 3), (4, 5))


def test_servers_take_the_ranks_devices_when_they_are_shared() -> None:
    placed = place(ranks=4, servers=2, tp=2, num_devices=4, shares_devices=True)
    assert placed.servers == ((0, 1), (2, 3))


def test_too_few_devices_is_an_error_with_both_numbers() -> None:
    with pytest.raises(PreflightError, match="need 6 devices, this machine has 4"):
        place(ranks=4, servers=1, tp=2, num_devices=4, shares_devices=False)
