"""Seconds are counted by name and step; a wait that goes on belongs to the steps it passes through."""

import contextlib

from asyncrl.metrics.timing import Stopwatches, WaitTimes, waiting
from asyncrl.waits import ActiveWait


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_seconds_are_summed_by_name_and_start_again_after_a_drain() -> None:
    clock = Clock()
    watches = Stopwatches(clock)
    for seconds in (1.0, 2.0):
        with watches.watch("step"):
            clock.now_s += seconds
    watches.add("save", 0.5)
    assert watches.drain() == {"timing_s/step": 3.0, "timing_s/save": 0.5}
    assert watches.drain() == {}


def test_a_block_that_fails_is_counted_too() -> None:
    clock = Clock()
    watches = Stopwatches(clock)
    with contextlib.suppress(KeyError), watches.watch("step"):
        clock.now_s += 4.0
        raise KeyError
    assert watches.drain() == {"timing_s/step": 4.0}


def test_idle_time_counts_every_pause_and_the_one_that_is_going_on() -> None:
    # Idle from 2 to 4 s and 6 to 8 s, and since 8.5 s when the step ends at 9 s: half of it.
    readings = iter([{}, {"groups": 4.5}, {"groups": 5.0}, {"groups": 5.0}])
    times = WaitTimes(lambda: next(readings))
    assert times.drain() == {"timing_s/wait/groups": 4.5}
    assert times.drain() == {"timing_s/wait/groups": 0.5}
    assert times.drain() == {}


def test_the_oldest_wait_is_told_apart_from_heartbeats() -> None:
    active = [ActiveWait("heartbeat", 10.0, ""), ActiveWait("worker waits for admission", 90.0, "window")]
    facts = waiting(apart_from=("heartbeat",), active=lambda: active, clock=lambda: 100.0)
    assert facts == {"waits_for": "worker waits for admission", "waits_s": 10.0, "why": "window"}
    assert waiting(active=lambda: [], clock=lambda: 100.0) == {"waits_for": "", "waits_s": 0.0, "why": ""}
