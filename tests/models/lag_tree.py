"""Lag across branches: random trees of versions, the integers that Lua compares against the definition.

The effective number of a version is its number up to the fork c from the current branch, and 2c - number above it, so
that lag = number - effective. A group's lag needs the lowest AND the highest number of its tokens on each branch.
"""

import random
from dataclasses import dataclass

from buffer import staleness
from buffer.versions import effective, fork_point
from tests.models.ledger.state import Version, distance


@dataclass(frozen=True)
class Compared:
    """Of how many trees: all agree with the definition; how often simpler rules do not."""

    num_trees: int
    wrong_if_lowest_only: float
    understated_by_number: float

    def __str__(self) -> str:
        return (
            f"{self.num_trees} trees: the effective numbers of (lowest, highest) per branch give the lag in all of "
            f"them\nwith the lowest alone: wrong in {self.wrong_if_lowest_only:.1%}; "
            f"plain numbers understate it in {self.understated_by_number:.1%}"
        )


def compare(num_trees: int) -> Compared:
    """Asserts that `buffer.versions` and the definition agree, on trees by seed."""
    wrong_lowest = wrong_number = 0
    for seed in range(num_trees):
        forks, current, number, tokens = _tree(random.Random(seed))
        known = {branch: fork for branch, fork in enumerate(forks) if branch}
        commons = {branch: fork_point(known, branch, current) for branch in range(current)}

        def effective_of(version: Version, commons: dict[int, int] = commons, current: int = current) -> int:
            branch, at = version
            return at if branch == current else effective(at, commons[branch])

        lag = max(distance(tuple(forks), token, (current, number)) for token in tokens)
        branches = {branch for branch, _ in tokens}
        lowest = [(b, min(n for branch, n in tokens if branch == b)) for b in branches]
        highest = [(b, max(n for branch, n in tokens if branch == b)) for b in branches]
        found = number - min(map(effective_of, lowest + highest))
        assert found == lag == staleness.lag(number, number - lag), (seed, forks, tokens, current, number)
        wrong_lowest += lag != number - min(map(effective_of, lowest))
        wrong_number += lag > number - min(n for _, n in tokens)
    return Compared(num_trees, wrong_lowest / num_trees, wrong_number / num_trees)


def _tree(rng: random.Random) -> tuple[list[Version], int, int, list[Version]]:
    """Forks by branch, the current branch and its number, and the versions of a group's tokens."""
    forks, tops = [(0, 0)], [rng.randrange(6)]
    for branch in range(1, rng.randrange(2, 6)):
        parent = rng.randrange(branch)
        at = rng.randrange(forks[parent][1] if parent else 0, tops[parent] + 1)
        forks.append((parent, at))
        tops.append(at + rng.randrange(5))
    current = len(forks) - 1
    tokens = []
    for _ in range(rng.randrange(1, 5)):
        branch = rng.randrange(current + 1)
        tokens.append((branch, rng.randint(forks[branch][1] if branch else 0, tops[branch])))
    return forks, current, tops[current], tokens
