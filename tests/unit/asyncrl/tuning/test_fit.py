"""Profiles of runs: every number from its place, and a clear word where a number is not there."""

from pathlib import Path
from statistics import fmean

import pytest

from asyncrl.errors import DataError
from asyncrl.report.lines import read, surviving
from asyncrl.report.speeds import Durations
from asyncrl.tuning import measured
from asyncrl.tuning.fit import fit, with_notice
from asyncrl.tuning.profile import Setting
from asyncrl.tuning.simulator import simulate
from tests.unit.asyncrl.tuning.profiles import profile
from tests.unit.asyncrl.tuning.run_dirs import SPEEDS, write_run


def test_every_number_comes_from_its_place(tmp_path: Path) -> None:
    found = fit(write_run(tmp_path))
    assert found.setting == Setting(limit=2, policy="wait", steps_per_version=1, servers=1, ranks=1, slots=48)
    assert (found.workload.groups_per_step, found.workload.group_size, found.workload.checkpoint_every) == (4, 2, 10)
    assert found.answers.lengths == {8: 120.0, 20: 40.0}, "the middle of a class, and all answers of it"
    # Of 120 times 8 and 40 times 20 tokens the variance is 27.
    assert found.answers.in_group_share == pytest.approx(9 / 27)
    assert (found.answers.turns, found.answers.prompt_tokens) == (1.5, 12.0)
    assert found.answers.environment_s == {0.4: 30.0, 0.9: 10.0}
    assert found.ess == {0: 1.0, 2: 0.875}
    speeds = found.speeds
    # Two workers share the server: it has twice the requests that one of them sees.
    assert speeds.token_s == {14.0: pytest.approx(0.03), 28.0: pytest.approx(0.05)}
    assert speeds.trained_token_s == pytest.approx(0.001)
    # 2 s less 1 s of waits, 0.5 s of update, 0.05 s of publishing and a checkpoint of 0.1 s each fifth step.
    assert speeds.step_s == pytest.approx(0.45 - 0.1 / 5, abs=0.003)
    assert speeds.blocked_s == pytest.approx(0.05)
    assert speeds.publish_s == pytest.approx(0.06)
    assert (speeds.stage_s, speeds.pause_s) == (pytest.approx(0.1), pytest.approx(0.2)), "without the first pause"
    assert speeds.checkpoint_s == pytest.approx(0.1)


def test_the_notice_is_what_requests_waited_longer_than_known_parts_explain(tmp_path: Path) -> None:
    # Publish, stage and pause are 0.36 s; half of the requests that waited did so for 0.5 s.
    assert fit(write_run(tmp_path)).speeds.notice_s == pytest.approx(0.5 - 0.36, abs=0.01)
    short = write_run(tmp_path / "short", speeds={**SPEEDS, "waited": {"64": [9, 0.5]}})
    assert fit(short).speeds.notice_s == 0.0
    nobody = write_run(tmp_path / "nobody", speeds={**SPEEDS, "waited": {}})
    assert fit(nobody).speeds.notice_s == 0.0


def test_a_simulation_with_the_notice_waits_as_long_as_the_run_did() -> None:
    found = profile(publish_s=0.1, stage_s=0.1, pause_s=0.2, setting=Setting(limit=1, slots=64))
    waited = Durations()
    for seconds in (0.1, 0.9, 0.9, 0.9, 5.0):
        waited.add(seconds)
    noticed = with_notice(found, waited)
    assert noticed.speeds.notice_s == pytest.approx(0.5)
    assert simulate(noticed, found.setting, steps=30).server_wait_s == pytest.approx(0.9)


def test_a_run_with_limit_0_publishes_before_its_next_step(tmp_path: Path) -> None:
    assert fit(write_run(tmp_path, limit=0)).speeds.blocked_s == 0.0, "the publish is counted as such"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"speeds": None}, r"rollout/facts\.json has no speeds of servers"),
        ({"steps": 6}, r"has 6 training steps; the first 6 fill the pipeline at limit 2"),
        ({"mode": "colocate_async"}, r"shares devices between the clusters"),
    ],
)
def test_what_was_not_measured_is_named(tmp_path: Path, changes: dict[str, object], text: str) -> None:
    with pytest.raises(DataError, match=text):
        fit(write_run(tmp_path, **changes))


def test_measured_numbers_are_those_of_the_steps_after_warm_up(tmp_path: Path) -> None:
    directory = write_run(tmp_path)
    steps = measured.counted_steps(surviving(read(directory)), Setting(limit=2), directory)
    assert [line.step for line in steps] == list(range(7, 21))
    assert measured.step_s(steps) == 2.0
    assert measured.stall_share(steps) == pytest.approx(0.5)
    assert measured.tokens_per_s(steps) == 250.0
    assert measured.stale_share({"stale_groups": 20, "groups": {"consumed": 80}}) == pytest.approx(1 / 5)
    assert measured.stale_share({"stale_groups": 0, "groups": {}}) == 0.0
    assert measured.lag_mean(steps) == 1.5


@pytest.mark.parametrize(
    ("changes", "step_s", "stall_share", "stale_share"),
    [
        ({}, 1.780, 0.76, 0.0),
        ({"limit": 0}, 5.140, 0.88, 0.0),
        ({"limit": 1}, 2.766, 0.78, 0.0),
        ({"limit": 4}, 1.344, 0.54, 0.0),
        ({"limit": 1, "policy": "drop"}, 2.875, 0.81, 0.168),
        ({"limit": 1, "steps_per_version": 2}, 1.658, 0.69, 0.0),
    ],
)
def test_a_profile_of_a_real_run_predicts_real_runs_with_other_settings(
    changes: dict[str, object], step_s: float, stall_share: float, stale_share: float
) -> None:
    """The numbers are those of `scripts/bench tune`, of which one run was kept."""
    found = fit(Path(__file__).parent / "measured_run")
    setting = found.setting.model_copy(update=changes)
    predicted = [simulate(found, setting, steps=50, seed=seed) for seed in range(4)]
    assert fmean(one.step_s for one in predicted) == pytest.approx(step_s, rel=0.15)
    assert fmean(one.stall_share for one in predicted) == pytest.approx(stall_share, abs=0.13)
    assert fmean(one.stale_share for one in predicted) == pytest.approx(stale_share, abs=0.03)
