"""Versions of the policy: packed integers, labels, and distance in the tree of branches.

A version is a point (branch, number). A resumed trainer opens a new branch at its checkpoint's number, so versions
form a tree; `forks[branch] = (parent, number)` says where each branch left its parent, and branch 0 is the root.
"""

from collections.abc import Iterable, Mapping

_NUMBER_BITS = 32
_NUMBER_MASK = (1 << _NUMBER_BITS) - 1

Forks = Mapping[int, tuple[int, int]]


def pack(branch: int, number: int) -> int:
    """One integer for a version: `branch << 32 | number`.

    Raises:
        ValueError: branch or number does not fit into 32 unsigned bits.
    """
    if 0 <= branch <= _NUMBER_MASK and 0 <= number <= _NUMBER_MASK:
        return branch << _NUMBER_BITS | number
    name, value = ("number", number) if 0 <= branch <= _NUMBER_MASK else ("branch", branch)
    raise ValueError(f"{name} = {value} of a version must be in 0..{_NUMBER_MASK}: it is stored in 32 bits.")


def unpack(version: int) -> tuple[int, int]:
    """The (branch, number) of a packed version.

    Raises:
        ValueError: `version` does not fit into 64 unsigned bits.
    """
    if not 0 <= version < 1 << 64:
        raise ValueError(f"version = {version} is not a packed version: it must be in 0..2**64-1.")
    return version >> _NUMBER_BITS, version & _NUMBER_MASK


def label(version: int) -> str:
    """The name people read: "branch.number", never a bare number."""
    branch, number = unpack(version)
    return f"{branch}.{number}"


def parse_label(text: str) -> int:
    """The packed version of a label.

    Raises:
        ValueError: `text` is not "branch.number".
    """
    branch, dot, number = text.partition(".")
    # isascii too: str.isdigit accepts digits of other scripts, which int() would then read as numbers.
    if not dot or not all(part.isascii() and part.isdigit() for part in (branch, number)):
        raise ValueError(f"{text!r} is not the label of a version: expected branch.number, for example 1.42.")
    return pack(int(branch), int(number))


def path(forks: Forks, branch: int, number: int) -> dict[int, int]:
    """The highest number that each branch has on the way from the root to (branch, number)."""
    steps = {branch: number}
    while branch:
        branch, fork = forks[branch]
        number = min(number, fork)
        steps[branch] = number
    return steps


def fork_point(forks: Forks, branch: int, current: int) -> int:
    """Number of the deepest version that `branch` and the branch `current` have in common."""
    top = _NUMBER_MASK
    ours, theirs = path(forks, current, top), path(forks, branch, top)
    deepest = max(set(ours) & set(theirs))
    return min(ours[deepest], theirs[deepest])


def distance(forks: Forks, one: int, other: int) -> int:
    """Versions between two versions along the tree: (i - c) + (j - c), c the number of their deepest common one."""
    (branch, i), (other_branch, j) = unpack(one), unpack(other)
    ours, theirs = path(forks, branch, i), path(forks, other_branch, j)
    deepest = max(set(ours) & set(theirs))
    common = min(ours[deepest], theirs[deepest])
    return (i - common) + (j - common)


def effective(number: int, fork: int) -> int:
    """The number on the current branch at the same distance from its head as `number` of a branch that left at `fork`.

    On the current branch itself `fork` is at or above every number. Above the fork each version is one step further
    away.
    """
    return number if number <= fork else 2 * fork - number


def extremes(versions: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Lowest and highest number per branch. Both are kept: on a dead branch the newest token is the farthest."""
    ends: dict[int, tuple[int, int]] = {}
    for version in versions:
        branch, number = unpack(version)
        low, high = ends.get(branch, (number, number))
        ends[branch] = (min(low, number), max(high, number))
    return ends
