"""A claim knows on which server its group may start."""

from buffer import Claim, pack


def claim(start_from: int, *, branch: int = 3, **commons: int) -> Claim:
    known = {int(name[1:]): number for name, number in commons.items()}
    return Claim(0, 1, "t", start_from, branch, 10, 2, 4, known)


def test_a_server_at_or_past_the_start_will_do() -> None:
    assert not claim(8).may_start_on(pack(3, 7))
    assert claim(8).may_start_on(pack(3, 8))
    assert claim(8).may_start_on(pack(3, 9))


def test_a_server_of_an_older_branch_counts_by_its_distance_in_the_tree() -> None:
    held = claim(8, b2=9)
    assert held.may_start_on(pack(2, 8))
    assert held.may_start_on(pack(2, 10)), "one past the fork at 9 is as far as 8"
    assert not held.may_start_on(pack(2, 11))


def test_a_branch_that_the_claim_does_not_know_shares_the_root_only() -> None:
    assert not claim(1).may_start_on(pack(1, 5))
    assert claim(0).may_start_on(pack(0, 0))


def test_a_newer_branch_will_do() -> None:
    assert claim(8).may_start_on(pack(4, 0))
