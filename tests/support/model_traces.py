"""Traces of the models for the tests that replay them: the shortest to what a missing rule breaks, and walks."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

from tests.models.cases import Cases
from tests.models.explorer import Model, Step, Violation, explore, named


def broken_trace(cases: Cases, rule: str) -> tuple[Any, list[Step]]:
    """The setting of a broken case, and the shortest trace to its problem, with names that last."""
    model: Any = cases.without(rule)
    found = explore(model)
    assert found.problem is not None, f"without {rule} nothing is wrong"
    return model.setting, [step for step, _ in named(model, found)]


def in_order(lines: Sequence[str], expected: Sequence[str]) -> bool:
    """Whether all that is expected stands there, in this order, whatever is between."""
    rest = iter(lines)
    return all(line in rest for line in expected)


def walk(model: Model[Any], seed: str, num_steps: int) -> Iterator[tuple[Step, Any]]:
    """A random walk through a model that keeps its promises: each step and the state after it."""
    rng, state = random.Random(seed), model.initial
    for _ in range(num_steps):
        moves = list(model.moves(state))
        if not moves:
            return
        step, _, after = rng.choice(moves)
        assert not isinstance(after, Violation), f"{step}: {after}"
        state = after
        yield step, state
