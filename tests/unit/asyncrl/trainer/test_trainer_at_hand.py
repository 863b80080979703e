"""What a stop is told: what is held, and when the step under way would end too late."""

from dataclasses import dataclass

import pytest

from asyncrl.trainer.at_hand import WorkAtHand


@dataclass
class Saving:
    not_saved: frozenset[int] = frozenset()
    last_write_s: float = 0.0


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def at_hand(*step_seconds, last_write_s=0.0, under_way_s=None):
    clock = Clock()
    work = WorkAtHand(clock)
    work.open(3, Saving(frozenset({4, 5}), last_write_s))
    for seconds in step_seconds:
        work.step_begins([])
        clock.now_s += seconds
        work.step_ended()
    if under_way_s is not None:
        work.step_begins([9, 8])
        clock.now_s += under_way_s
    return work, clock


def test_held_are_the_groups_of_the_step_and_those_of_no_checkpoint():
    assert at_hand(under_way_s=1.0)[0].held == [4, 5, 8, 9]
    assert at_hand(1.0)[0].held == [4, 5]
    assert WorkAtHand().held == []


@pytest.mark.parametrize(
    ("left_s", "steps", "since_s", "write_s", "is_late"),
    [
        (30.0, (20.0, 60.0), 10.0, 5.0, True),  # the longest of the last ones decides: 50 s are missing
        (56.0, (20.0, 60.0), 10.0, 5.0, False),
        (52.0, (20.0, 60.0), 10.0, 5.0, True),  # the step would end in time, its checkpoint would not
        (30.0, (), 10.0, 5.0, False),  # nothing was measured: the step gets all the time there is
        (30.0, (60.0,), 61.0, 5.0, False),  # it is late already and may end at any moment
        (0.0, (60.0,), 61.0, 5.0, True),
        (1.0, (60.0,), None, 5.0, False),  # between steps the loop leaves by itself
        (-1.0, (60.0,), None, 5.0, True),
    ],
)
def test_a_step_is_given_up_only_if_it_would_end_too_late(left_s, steps, since_s, write_s, is_late):
    work, clock = at_hand(*steps, last_write_s=write_s, under_way_s=since_s)
    assert bool(work.too_late(clock.now_s + left_s)) is is_late


def test_old_steps_are_forgotten():
    work, clock = at_hand(100.0, *[1.0] * 5, under_way_s=0.0)
    assert work.too_late(clock.now_s + 10.0) == ""
