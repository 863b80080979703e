"""The explorer against transition systems that can be checked by hand."""

from collections.abc import Iterator

import pytest

from tests.models.explorer import STUCK, Move, Step, Violation, explore, named


class Counter:
    """Counts up to `top`; at `trap` it may turn off the road, at `wrong` it breaks its promise."""

    def __init__(self, top: int, *, trap: int = -1, wrong: int = -9, breaks: int = -9) -> None:
        self.initial, self.top, self.trap, self.wrong, self.breaks = 0, top, trap, wrong, breaks

    def moves(self, state: int) -> Iterator[Move[int]]:
        if state == self.breaks:
            yield Move(Step("counter", "break", (state,)), False, Violation(f"breaks at {state}"))
        if 0 <= state < self.top:
            yield Move(Step("counter", "jump", (state,)), True, min(state + 2, self.top))
            yield Move(Step("counter", "count", (state,)), False, state + 1)
        if state == self.trap:
            yield Move(Step("counter", "fall"), True, -1)

    def canonical(self, state: int) -> int:
        return state

    def problem(self, state: int) -> str | None:
        return f"it is {state}" if state == self.wrong else None

    def is_goal(self, state: int) -> bool:
        return state == self.top


def test_what_keeps_its_promises_and_can_always_go_on_is_found_to_be_right() -> None:
    found = explore(Counter(5))
    assert (found.num_states, found.problem, found.trace) == (6, None, ())


def test_the_trace_to_a_broken_promise_is_a_shortest_one() -> None:
    found = explore(Counter(9, wrong=5))
    assert found.problem == "it is 5"
    assert [step.word for step in found.trace] == ["jump", "jump", "count"]
    assert found.path == (0, 2, 4, 5)


def test_a_move_may_itself_be_the_violation() -> None:
    found = explore(Counter(9, breaks=2))
    assert found.problem == "breaks at 2"
    assert [str(step) for step in found.trace] == ["counter: jump 0", "counter: break 2"]
    assert [after for _, after in named(Counter(9, breaks=2), found)] == [2, None]


def test_a_state_without_a_fault_free_way_to_the_goal_is_stuck() -> None:
    found = explore(Counter(5, trap=1))
    assert found.problem == STUCK
    assert [step.word for step in found.trace] == ["count", "fall"]


def test_a_way_that_needs_a_fault_is_no_progress() -> None:
    class Jumper(Counter):
        def moves(self, state: int) -> Iterator[Move[int]]:
            return (move for move in super().moves(state) if move.is_fault)

    assert explore(Jumper(5)).problem == STUCK


def test_an_exploration_that_was_given_up_says_so() -> None:
    found = explore(Counter(100), max_states=10)
    assert (found.problem, found.is_complete) == (None, False)


def test_a_trace_is_told_again_with_names_that_last() -> None:
    class Pair:
        """Two counters; sorted, since which is which says nothing. The trace ends where one is two ahead."""

        initial = (0, 0)

        def moves(self, state: tuple[int, int]) -> Iterator[Move[tuple[int, int]]]:
            for place in (0, 1):
                after = tuple(value + (at == place) for at, value in enumerate(state))
                yield Move(Step(f"counter {place}", "count"), False, (after[0], after[1]))

        def canonical(self, state: tuple[int, int]) -> tuple[int, int]:
            return min(state), max(state)

        def problem(self, state: tuple[int, int]) -> str | None:
            return "apart" if abs(state[0] - state[1]) == 2 else None

        def is_goal(self, state: tuple[int, int]) -> bool:
            return True

    found = explore(Pair())
    steps = [(str(step), after) for step, after in named(Pair(), found)]
    assert steps == [("counter 0: count", (1, 0)), ("counter 0: count", (2, 0))]


def test_a_trace_that_no_moves_lead_along_is_refused() -> None:
    found = explore(Counter(9, wrong=5))
    with pytest.raises(AssertionError, match="has no counterpart"):
        for _ in named(Counter(3), found):
            pass
