"""What a fault is: a generator that does something to a soak's processes and yields what it waits for.

A yielded number is a pause in seconds; a yielded condition is waited for, and its deadline is a violation. What a fault
holds no other fault may touch meanwhile, and what it shares nobody may hold: so that two faults do not undo each other,
and nobody asks a server that this thread has yet to start again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from buffer import ReplayBuffer
from tests.support.soak.cluster import MAIN, Cluster
from tests.support.soak.journal import Reader

ATTEMPTS, HITS, LOOK_S = 8, 40, 0.2


@dataclass(frozen=True, slots=True)
class Condition:
    """Something to wait for."""

    what: str
    is_true: Callable[[], bool]


Steps = Iterator[float | Condition]


@dataclass(frozen=True, slots=True)
class Scene:
    """Where faults act."""

    cluster: Cluster
    buffer: ReplayBuffer
    rng: Random


@dataclass(frozen=True, slots=True)
class Fault:
    """How to do it, how often it comes relative to others, and what it needs."""

    steps: Callable[[Scene], Steps]
    weight: float
    holds: frozenset[str] = frozenset()
    shares: frozenset[str] = frozenset()


def more(journal: Reader, *what: str, by: int = 1) -> Callable[[], bool]:
    """What answers whether so many of these events have come since."""
    before = sum(journal.counts[one] for one in what)
    return lambda: sum(journal.counts[one] for one in what) >= before + by


def until_left(scene: Scene, code: int, attempt: Callable[[], Steps]) -> Steps:
    """Again until a trainer has left with `code`: one may die of a poisonous batch instead, or both did."""
    for _ in range(ATTEMPTS):
        before = scene.cluster.exits[f"{MAIN}:{code}"]
        yield from attempt()
        yield LOOK_S
        if scene.cluster.exits[f"{MAIN}:{code}"] > before:
            return
    scene.cluster.violations.append(f"in {ATTEMPTS} attempts no trainer left with code {code}")
