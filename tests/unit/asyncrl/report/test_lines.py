"""Of a run that was resumed, each step counts once: as the surviving branch has it."""

import json
from pathlib import Path

import pytest

from asyncrl.report.lines import Line, read, surviving

TRAINED = {"critic/rewards/mean": 0.5}


def line(step: int, branch: int, **values: float) -> Line:
    return Line(step, branch, 100.0 * branch + step, {**TRAINED, **values})


def kept(*lines: Line) -> list[tuple[int, int]]:
    return [(line.step, line.branch) for line in surviving(lines)]


def test_an_uninterrupted_run_keeps_every_line() -> None:
    assert kept(*(line(step, 1) for step in range(5))) == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)]


def test_after_a_resume_the_higher_branch_wins() -> None:
    lines = [*(line(step, 1) for step in range(1, 9)), *(line(step, 2) for step in range(6, 11))]
    assert kept(*lines) == [(step, 1) for step in range(1, 6)] + [(step, 2) for step in range(6, 11)]


def test_a_step_that_was_not_repeated_is_dropped() -> None:
    # Killed at step 8, resumed at the checkpoint of step 5, killed again at step 6.
    lines = [*(line(step, 1) for step in range(1, 9)), line(6, 2)]
    assert kept(*lines) == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 2)]


def test_a_later_resume_from_an_older_checkpoint_drops_both_earlier_branches() -> None:
    lines = [
        *(line(step, 1) for step in range(1, 9)),
        *(line(step, 2) for step in range(6, 10)),
        *(line(step, 3) for step in range(3, 5)),
    ]
    assert kept(*lines) == [(1, 1), (2, 1), (3, 3), (4, 3)]


def test_a_fenced_trainer_that_writes_late_changes_nothing() -> None:
    lines = [*(line(step, 1) for step in range(1, 5)), *(line(step, 2) for step in range(3, 7)), line(5, 1)]
    assert kept(*lines) == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2), (6, 2)]


def test_two_lines_of_a_step_are_joined() -> None:
    joined = surviving([line(3, 1, loss=0.1), Line(3, 1, 104.0, {"val-core/x/reward/mean@1": 0.9})])
    assert [dict(one.values) for one in joined] == [{**TRAINED, "loss": 0.1, "val-core/x/reward/mean@1": 0.9}]


def test_an_evaluation_at_the_fork_keeps_the_training_of_its_step() -> None:
    lines = [
        line(4, 1),
        line(5, 1, loss=0.1),
        line(6, 1),
        Line(5, 2, 300.0, {"val-core/x/reward/mean@1": 0.9}),
        line(6, 2),
    ]
    result = {one.step: one for one in surviving(lines)}
    assert result[5].values["loss"] == 0.1
    assert result[5].values["val-core/x/reward/mean@1"] == 0.9
    assert result[6].branch == 2


def test_a_repeated_step_takes_nothing_over_from_the_line_it_replaces() -> None:
    lag = "training/off_policy/lag/3"
    result = surviving([Line(2, 1, 1.0, {**TRAINED, lag: 8}), Line(2, 2, 2.0, TRAINED)])
    assert lag not in result[0].values


def test_a_torn_or_foreign_line_is_left_out_and_said_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = json.dumps({"step": 1, "branch": 1, "time_s": 5.0, "loss": "nan", "x": 2})
    (tmp_path / "metrics.jsonl").write_text(f'{good}\n[1]\n{{"step": 2}}\n\n{good[:20]}')
    (only,) = read(tmp_path)
    assert (only.step, only.branch, only.time_s, only.values["x"]) == (1, 1, 5.0, 2.0)
    assert only.values["loss"] != only.values["loss"]
    assert "line 2" in caplog.text
    assert "line 5" in caplog.text


def test_a_run_without_metrics_has_no_lines(tmp_path: Path) -> None:
    assert read(tmp_path) == []
    assert surviving([]) == []
