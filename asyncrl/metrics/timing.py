"""Named stopwatches: the seconds of a step under `timing_s/<name>`, and what is being waited for right now."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from asyncrl import waits

PREFIX = "timing_s/"


class Stopwatches:
    """Seconds by name since the last `drain`; several threads may measure at once, also under one name."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def watch(self, name: str) -> Iterator[None]:
        """Count the seconds of the block, also when it ends in an exception."""
        start = self._clock()
        try:
            yield
        finally:
            self.add(name, self._clock() - start)

    def add(self, name: str, seconds: float) -> None:
        """Count seconds that were measured elsewhere."""
        with self._lock:
            self._seconds[name] += seconds

    def drain(self) -> dict[str, float]:
        """`timing_s/<name>` -> seconds since the last call, and start again at nothing."""
        with self._lock:
            drained, self._seconds = self._seconds, defaultdict(float)
        return {PREFIX + name: seconds for name, seconds in drained.items()}


class WaitTimes:
    """Seconds per named wait of this process, of each step.

    A wait that is going on counts up to now, in the step in which it passes: however many waits a step holds, their
    share of it stays between 0 and 1.
    """

    def __init__(self, seconds: Callable[[], Mapping[str, float]] = waits.seconds) -> None:
        self._read = seconds
        self._before = dict(seconds())

    def drain(self) -> dict[str, float]:
        """`timing_s/wait/<name>` -> seconds since the last call; names without any are absent."""
        now = dict(self._read())
        passed = {name: seconds - self._before.get(name, 0.0) for name, seconds in now.items()}
        self._before = now
        return {f"{PREFIX}wait/{name}": seconds for name, seconds in passed.items() if seconds > 0}


def waiting(
    *,
    apart_from: Collection[str] = (),
    active: Callable[[], Sequence[waits.ActiveWait]] = waits.active,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, float | str]:
    """What this process waits for and since when, as facts for a report: `waits_for`, `waits_s`, `why`.

    Of several waits it is the oldest. `apart_from` names those that go on all the time, such as a heartbeat's pause.
    """
    found = next((wait for wait in active() if wait.name not in apart_from), None)
    if found is None:
        return {"waits_for": "", "waits_s": 0.0, "why": ""}
    return {"waits_for": found.name, "waits_s": clock() - found.since_s, "why": found.why}
