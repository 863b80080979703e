"""What counts as done of a run that nobody stopped."""

import re

import pytest

from asyncrl.run.outcome import Ended, undone


@pytest.mark.parametrize(
    "ended",
    [
        Ended("finished", "steps", 8),
        Ended("finished", "max_hours", 3),
        Ended("finished", "target_score", 1),
    ],
)
def test_a_run_that_reached_one_of_its_ends_is_done(ended: Ended) -> None:
    assert undone(ended, 8) == ""


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        (Ended("finished", "steps", 4), "finished, and ran 4 of 8 steps"),
        (Ended("stopped", "stop", 4), "stopped, and ran 4 of 8 steps"),
        (Ended("left", "stop", why="the time is up"), r"left \(the time is up\), and ran 0 of 8 steps"),
        (Ended(), "unknown, and ran 0 of 8 steps"),
    ],
)
def test_one_that_ended_before_is_said_to_be_undone_with_both_numbers(ended: Ended, said: str) -> None:
    """B182: whatever the exit codes of the ranks were."""
    assert re.search(said, undone(ended, 8))
