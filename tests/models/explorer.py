"""Breadth-first exploration of a model: the shortest trace to a violation, and states that lead to no progress.

A model is a finite transition system. Its states are hashable. A state must not only be harmless: from each one that
can be reached a goal must be reachable by moves that are not faults, else the protocol is stuck there.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from time import process_time
from typing import Generic, NamedTuple, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)

MAX_STATES = 2_000_000
STUCK = "STUCK: no fault-free path to the next version"


class Step(NamedTuple):
    """The label of a move. `word` is a transition of the real thing, or a happening outside of it (see words.py)."""

    who: str
    word: str
    about: tuple[int, ...] = ()
    """Ordinals, or numbers."""
    how: str = ""
    """What is special about it, for example "reply lost"."""

    def __str__(self) -> str:
        about = " " + ",".join(map(str, self.about)) if self.about else ""
        return f"{self.who}: {self.word}{about}" + (f" ({self.how})" if self.how else "")


@dataclass(frozen=True)
class Violation:
    """Where a move leads that breaks a promise."""

    text: str


class Move(NamedTuple, Generic[S]):
    """One thing that may happen next."""

    step: Step
    is_fault: bool
    after: S | Violation


class Model(Protocol[S]):
    """What is explored."""

    initial: S

    def moves(self, state: S) -> Iterator[Move[S]]:
        """All that may happen next."""
        ...

    def canonical(self, state: S) -> S:
        """The one that stands for all states that differ in names only."""
        ...

    def problem(self, state: S) -> str | None:
        """The promise that this state breaks."""
        ...

    def is_goal(self, state: S) -> bool:
        """Progress: the next version is trained."""
        ...


@dataclass(frozen=True)
class Found(Generic[S]):
    """What an exploration found. `problem` None: nothing is wrong. `path`: the states of the trace, the first one
    included; a last step that is itself a violation leads to none."""

    num_states: int
    seconds: float
    problem: str | None = None
    trace: tuple[Step, ...] = ()
    path: tuple[S, ...] = ()
    is_complete: bool = True


Watch = Callable[[S, Step, S], None]
"""Called for every move that leads to a state."""


def explore(model: Model[S], *, max_states: int = MAX_STATES, watch: Watch[S] | None = None) -> Found[S]:
    """Everything that can be reached, up to the first problem."""
    start_s = process_time()
    initial = model.canonical(model.initial)
    parents: dict[S, tuple[S, Step] | None] = {initial: None}
    before: defaultdict[S, list[S]] = defaultdict(list)
    todo = deque([initial])

    def found(problem: str | None, at: S | None, *last: Step, is_complete: bool = True) -> Found[S]:
        steps, path = _trace(parents, at)
        return Found(len(parents), process_time() - start_s, problem, (*steps, *last), path, is_complete)

    while todo:
        state = todo.popleft()
        if problem := model.problem(state):
            return found(problem, state)
        for step, is_fault, after in model.moves(state):
            if isinstance(after, Violation):
                return found(after.text, state, step)
            known = model.canonical(after)
            if watch is not None:
                watch(state, step, after)
            if not is_fault:
                before[known].append(state)
            if known not in parents:
                if len(parents) >= max_states:
                    return found(None, None, is_complete=False)
                parents[known] = (state, step)
                todo.append(known)
    stuck = _first_stuck(model, parents, before)
    return found(None if stuck is None else STUCK, stuck)


def _trace(parents: dict[S, tuple[S, Step] | None], at: S | None) -> tuple[tuple[Step, ...], tuple[S, ...]]:
    if at is None:
        return (), ()
    steps: list[Step] = []
    path = [at]
    while (parent := parents[path[-1]]) is not None:
        path.append(parent[0])
        steps.append(parent[1])
    return tuple(reversed(steps)), tuple(reversed(path))


def _first_stuck(model: Model[S], parents: dict[S, tuple[S, Step] | None], before: defaultdict[S, list[S]]) -> S | None:
    """The nearest state from which no goal can be reached without a fault."""
    good = {state for state in parents if model.is_goal(state)}
    todo = deque(good)
    while todo:
        for state in before.get(todo.popleft(), ()):
            if state not in good:
                good.add(state)
                todo.append(state)
    # The order of insertion is breadth first, so the first one is a nearest one.
    return next((state for state in parents if state not in good), None)


def named(model: Model[S], found: Found[S]) -> Iterator[tuple[Step, S | None]]:
    """The trace again with names that last: each step and the state after it, None after a violation.

    `canonical` renames workers and tokens on the way, so the labels of an exploration are right only one by one.
    """
    state = model.initial
    for place, step in enumerate(found.trace):
        want = found.path[place + 1] if place + 1 < len(found.path) else None
        for move in model.moves(state):
            after = move.after
            if isinstance(after, Violation):
                if want is None and move.step.word == step.word and after.text == found.problem:
                    yield move.step, None
                    return
            elif move.step.word == step.word and want is not None and model.canonical(after) == want:
                yield move.step, after
                state = after
                break
        else:
            raise AssertionError(f"step {place + 1}, {step}, has no counterpart: `canonical` does not rename only")
