"""Versions: packing, labels, and distance in the tree against its definition."""

import random

import pytest

from buffer.versions import distance, effective, extremes, fork_point, label, pack, parse_label, unpack


@pytest.mark.parametrize(("branch", "number"), [(0, 0), (1, 0), (0, 1), (3, 17), (2**32 - 1, 2**32 - 1)])
def test_a_version_survives_packing_and_its_label(branch: int, number: int) -> None:
    assert unpack(pack(branch, number)) == (branch, number)
    assert parse_label(label(pack(branch, number))) == pack(branch, number)
    assert label(pack(branch, number)) == f"{branch}.{number}"


@pytest.mark.parametrize(("branch", "number"), [(-1, 0), (0, -1), (2**32, 0), (0, 2**32)])
def test_a_number_that_does_not_fit_is_named(branch: int, number: int) -> None:
    with pytest.raises(ValueError, match=r"branch|number"):
        pack(branch, number)


@pytest.mark.parametrize("text", ["", "7", "1.", ".1", "1.2.3", "a.b", "-1.2", "1.٣", " 1.2"])
def test_what_is_no_label_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected branch"):
        parse_label(text)


def test_distance_on_one_branch_is_the_difference() -> None:
    assert distance({1: (0, 0)}, pack(1, 4), pack(1, 9)) == 5


def test_distance_over_a_fork_goes_back_to_it_and_forth() -> None:
    forks = {1: (0, 0), 2: (1, 10)}
    assert distance(forks, pack(1, 13), pack(2, 12)) == 3 + 2
    assert distance(forks, pack(1, 8), pack(2, 12)) == 4
    assert distance(forks, pack(0, 0), pack(1, 0)) == 0


def test_effective_numbers_give_the_distance_in_any_tree() -> None:
    for seed in range(2000):
        draw = random.Random(seed)
        forks: dict[int, tuple[int, int]] = {}
        tops = [0]
        for branch in range(1, draw.randrange(2, 7)):
            parent = draw.randrange(branch)
            at = draw.randint(forks[parent][1] if parent else 0, tops[parent])
            forks[branch] = (parent, at)
            tops.append(at + draw.randrange(5))
        current = len(tops) - 1
        head = pack(current, tops[current])
        commons = {branch: fork_point(forks, branch, current) for branch in range(current)}
        tokens = [
            pack(branch, draw.randint(forks[branch][1] if branch else 0, tops[branch]))
            for branch in (draw.randint(0, current) for _ in range(draw.randint(1, 4)))
        ]
        ends = [(branch, number) for branch, pair in extremes(tokens).items() for number in pair]
        oldest = min(n if b == current else effective(n, commons[b]) for b, n in ends)
        assert tops[current] - oldest == max(distance(forks, token, head) for token in tokens), f"seed {seed}"


def test_the_farthest_token_of_a_dead_branch_may_be_the_newest() -> None:
    assert extremes([pack(1, 5), pack(1, 9), pack(2, 5)]) == {1: (5, 9), 2: (5, 5)}
    fork = 6
    assert min(effective(5, fork), effective(9, fork)) == effective(9, fork) == 3
