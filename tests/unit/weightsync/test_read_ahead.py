"""Reading ahead: in order, within the budget, beside what is used, and never longer than the deadline."""

import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weightsync.errors import DeadlineExceeded, TransportLost
from weightsync.read_ahead import Fetch, ReadAhead
from weightsync.transport.base import Deadline


def ahead(fetches: list[Fetch[int]], budget: int, seconds: float = 30.0) -> ReadAhead[int]:
    return ReadAhead(fetches, lambda size: size, threads=2, budget=budget, deadline=Deadline(seconds, "staging for s"))


class Held:
    """Counts the bytes of results that were begun and are not yet released."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = self.most = 0

    def call(self, size: int, before: Callable[[], None] = lambda: None) -> Callable[[], int]:
        def fetch() -> int:
            before()
            with self._lock:
                self.now += size
                self.most = max(self.most, self.now)
            return size

        return fetch

    def release(self, size: int) -> None:
        with self._lock:
            self.now -= size


@given(sizes=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=30), budget=st.integers(1, 200))
@settings(deadline=None, max_examples=60)
def test_no_more_than_the_budget_or_one_that_is_larger_is_held(sizes: list[tuple[int, int]], budget: int) -> None:
    """A result may turn out smaller than it was announced, as a part does whose planes are few."""
    held = Held()
    announced = [actual + more for actual, more in sizes]
    reader = ahead(
        [
            Fetch(f"part {i}", size, held.call(actual))
            for i, (size, (actual, _)) in enumerate(zip(announced, sizes, strict=True))
        ],
        budget,
    )
    used = 0
    for actual, _ in sizes:
        held.release(used)
        used = reader.take()
        assert used == actual
    reader.close()
    assert held.most <= max([budget, *announced])


def test_the_next_ones_come_while_one_is_used() -> None:
    begun = [threading.Event() for _ in range(4)]
    held = Held()
    reader = ahead([Fetch(f"part {i}", 10, held.call(10, event.set)) for i, event in enumerate(begun)], budget=30)
    assert reader.take() == 10
    # Nobody asked for them; the fourth would be more than the budget while the first is in use.
    assert begun[1].wait(10.0)
    assert begun[2].wait(10.0)
    assert not begun[3].is_set()
    assert reader.take() == 10
    assert begun[3].wait(10.0)
    reader.close()


def test_calls_that_wait_long_wait_together() -> None:
    together = threading.Barrier(8)

    def call() -> int:
        together.wait(30.0)  # broken unless eight calls are on their way
        return 1

    fetches = [Fetch(f"part {i}", 1, call) for i in range(16)]
    reader = ReadAhead(fetches, lambda size: size, threads=8, budget=100, deadline=Deadline(60.0, "staging for s"))
    assert [reader.take() for _ in fetches] == [1] * 16
    reader.close()


def test_what_does_not_come_ends_at_the_deadline_and_is_not_waited_for_at_the_end() -> None:
    release = threading.Event()

    def hangs() -> int:
        release.wait(60.0)
        return 1

    reader = ahead([Fetch("bucket 3 of 1.7", 10, hangs)], budget=100, seconds=0.0)
    with pytest.raises(DeadlineExceeded, match=r"staging for s: not done in 0\.0 s\. bucket 3 of 1\.7 is still on its"):
        reader.take()
    reader.close()
    assert not release.is_set()
    release.set()


def test_an_error_comes_in_its_turn() -> None:
    def fails() -> int:
        raise TransportLost("gone")

    def late() -> int:
        raise TimeoutError("the call's own")

    reader = ahead([Fetch("a", 1, lambda: 7), Fetch("b", 1, fails), Fetch("c", 1, late)], budget=100)
    assert reader.take() == 7
    with pytest.raises(TransportLost, match="gone"):
        reader.take()
    with pytest.raises(TimeoutError, match="the call's own"):
        reader.take()
    reader.close()
