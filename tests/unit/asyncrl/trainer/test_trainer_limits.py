"""What ends a run before its steps are done: hours over all starts, and a held-out score."""

import asyncio

import pytest

from asyncrl.config import TrainerConfig
from asyncrl.trainer.limits import Limits
from asyncrl.trainer.lineage import Lineage
from asyncrl.trainer.parallel import OneRank


def limits(step=0, spent_before_s=0.0, **bounds):
    return Limits(TrainerConfig(steps=10, **bounds), Lineage(1, step, step, spent_before_s=spent_before_s), OneRank())


def reached(limits):
    return asyncio.run(limits.reached())


def test_without_bounds_the_steps_end_the_run():
    assert reached(limits(step=9)) is None
    assert reached(limits(step=10)) == "steps"


def test_hours_count_over_all_starts():
    assert reached(limits(max_hours=1.0, spent_before_s=3590.0)) is None
    assert reached(limits(max_hours=1.0, spent_before_s=3600.0)) == "max_hours"


@pytest.mark.parametrize(("scores", "found"), [([], None), ([0.5, None], None), ([0.8, 0.3], "target_score")])
def test_a_score_at_the_target_ends_the_run_also_if_a_later_one_is_lower(scores, found):
    asked = limits(target_score=0.8)
    for score in scores:
        asked.scored(score)
    assert reached(asked) == found


def test_a_target_below_zero_is_not_reached_without_a_score():
    assert reached(limits(target_score=-1.0)) is None
