"""Where the seconds of a step go: at each moment one phase counts, so that the phases of a step add up to it.

A phase within another interrupts it, and so does a named wait; what is in none is `other`. Seconds of the process as a
whole, waits beside each other and all, are metrics.timing's.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from asyncrl import waits

OTHER = "other"


class Phases:
    """The seconds of one task, by phase.

    Args:
        of_wait: wait name -> the phase that it is; a wait that is not named is a phase by itself.
        clock: seconds.
    """

    def __init__(self, of_wait: Mapping[str, str], clock: Callable[[], float] = time.perf_counter) -> None:
        self._of_wait, self._clock = of_wait, clock
        self._open = [OTHER]
        self._seconds: dict[str, float] = {}
        self._since_s = self._began_s = clock()

    def begin(self) -> None:
        """Count the task that calls this, from now on: its waits, and what it does within `phase`. No other task's."""
        _counting.set((asyncio.current_task(), self))
        waits.watch_own(lambda name: self.within(self._of_wait.get(name, name)))
        self.lap()

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        """Count the block as phase `name`, but for the phases in it."""
        self._charge()
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def lap(self) -> tuple[float, dict[str, float]]:
        """(seconds since the last call, or the start; the same by phase), which add up; and start again at nothing."""
        self._charge()
        total_s, seconds = self._since_s - self._began_s, self._seconds
        self._began_s, self._seconds = self._since_s, {}
        return total_s, seconds

    def _charge(self) -> None:
        now_s, phase = self._clock(), self._open[-1]
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now_s - self._since_s
        self._since_s = now_s


_counting: ContextVar["tuple[asyncio.Task[object] | None, Phases] | None"] = ContextVar("phases", default=None)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Count the block, or a decorated function, as phase `name` of the step, if the task that runs it counts."""
    counting = _counting.get()
    if counting is None or not waits.is_current(counting[0]):
        yield
        return
    with counting[1].within(name):
        yield
