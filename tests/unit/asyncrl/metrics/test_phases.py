"""Every second of a step belongs to one phase: phases add up, nested ones are counted once, other tasks not at all."""

import asyncio
import threading
from contextlib import suppress

import pytest

from asyncrl import waits
from asyncrl.metrics.phases import Phases, phase


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def passes(self, seconds: float) -> None:
        self.now_s += seconds


def test_phases_and_what_is_in_none_add_up_to_the_lap() -> None:
    """Idle from 2 to 4 s, 6 to 8 s and since 8.5 s of a step of 9 s: half of it (B203)."""
    clock = Clock()
    phases = Phases({}, clock)
    for seconds, idle_s in ((2.0, 2.0), (2.0, 2.0), (0.5, 0.5)):
        clock.passes(seconds)
        with phases.within("idle"):
            clock.passes(idle_s)
    assert phases.lap() == (9.0, {"other": 4.5, "idle": 4.5})
    assert phases.lap() == (0.0, {"other": 0.0})


def test_a_phase_within_another_interrupts_it_and_a_lap_cuts_both() -> None:
    clock = Clock()
    phases = Phases({}, clock)
    with phases.within("learner"):
        clock.passes(1.0)
        with suppress(KeyError), phases.within("update_actor"):
            clock.passes(5.0)
            raise KeyError
        clock.passes(2.0)
        assert phases.lap() == (8.0, {"other": 0.0, "learner": 3.0, "update_actor": 5.0})
        clock.passes(4.0)
    assert phases.lap() == (4.0, {"learner": 4.0, "other": 0.0})


def test_the_tasks_own_waits_are_phases_and_those_of_other_tasks_and_threads_are_not() -> None:
    clock = Clock()
    phases = Phases({"trainer waits for groups": "wait_groups"}, clock)

    async def beside() -> None:
        with waits.timed("heartbeat"), phase("beside"):
            clock.passes(16.0)

    async def step() -> None:
        phases.begin()
        with waits.timed("trainer waits for groups"):
            clock.passes(1.0)
            await asyncio.create_task(beside())
            await waits.in_thread(in_thread)
        with waits.timed("trainer writes a checkpoint"), phase("bytes"):
            clock.passes(2.0)
        update()

    def in_thread() -> None:
        with waits.timed("a call in a thread"), phase("in thread"):
            clock.passes(32.0)

    @phase("update_actor")
    def update() -> None:
        clock.passes(4.0)

    asyncio.run(step())
    seconds, by_phase = phases.lap()
    assert seconds == sum(by_phase.values()) == 55.0
    counted = {name: spent for name, spent in by_phase.items() if spent}
    assert counted == {"wait_groups": 1.0 + 16.0 + 32.0, "bytes": 2.0, "update_actor": 4.0}


def test_without_a_task_that_counts_a_phase_is_nothing() -> None:
    done: list[int] = []

    @phase("update_actor")
    def update(count: int) -> int:
        done.append(count)
        return count

    assert update(3) == 3
    thread = threading.Thread(target=update, args=(4,))
    thread.start()
    thread.join()
    assert done == [3, 4]
    with pytest.raises(KeyError), phase("x"):
        raise KeyError
