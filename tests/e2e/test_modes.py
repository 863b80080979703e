"""The modes and limits as whole runs: lag within the limit, and limit 0 the same as sync bit for bit."""

from pathlib import Path

import pytest

from asyncrl.trainer import checkpoint_files as files
from scripts.benches.trainer_cases import resume
from tests.e2e.conftest import SMALL, Start
from tests.support.commands import CONFIG, Command, metric_lines, summary, without_clock

TWICE = ("schedule.steps_per_version=2", "actor.ppo_epochs=2")
SAME = ("trainer.steps=4", "trainer.checkpoint.every_steps=2", "staleness.order=ordinal", "run.name=same", *TWICE)


def versions(run_dir: Path) -> list[float]:
    """The version that is trained after each step."""
    return [line["training/version"] for line in metric_lines(run_dir) if "actor/pg_loss" in line]


@pytest.fixture(scope="module")
def sync(starter: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run in mode sync."""
    directory = tmp_path_factory.mktemp("sync")
    keys = (f"run.dir={directory}", *SMALL, *SAME)
    command = Command(["train", str(CONFIG), "--mode", "sync", *keys], directory / "train.out")
    try:
        assert command.wait() == 0, command.text()
    finally:
        command.close()
    return directory


def test_separate_async_at_limit_zero_is_sync_bit_for_bit(sync: Path, start: Start, tmp_path: Path) -> None:
    same, separate = SAME, tmp_path / "separate"
    rollout = start("serve-rollout", *same, "staleness.limit=0", run_dir=separate)
    trainer = start("train", "--mode", "separate_async", "staleness.limit=0", *same, run_dir=separate)
    assert trainer.wait() == 0, trainer.text()
    assert rollout.wait() == 0, rollout.text()
    left, right = ([without_clock(line) for line in metric_lines(run)] for run in (sync, separate))
    assert len(left) == 6  # before, four steps, after
    assert left == right
    assert versions(sync) == [0, 1, 1, 2]


def test_a_killed_and_resumed_run_is_one_that_was_not_bit_for_bit(sync: Path, start: Start, tmp_path: Path) -> None:
    """Weights, moments, random states and every number that neither a clock nor a kill gives."""
    run = tmp_path / "killed"
    trainer = start("train", "--mode", "sync", *SAME, run_dir=run)
    trainer.until("a checkpoint", lambda: bool(files.listed(run / "checkpoints")))
    trainer.kill()
    trainer = start("train", "--mode", "sync", *SAME, "--resume", run_dir=run)
    assert trainer.wait() == 0, trainer.text()
    lines = metric_lines(run)
    assert sorted({line["branch"] for line in lines}) == [1, 2]
    assert [line["step"] for line in lines if line["branch"] == 2 and "actor/pg_loss" in line] == [3, 4]
    assert resume.differences(sync, run, resume.OF_A_RESUME) == []
    facts = summary(run)
    assert (facts["steps"], facts["audit_ok"], facts["weights_equal"]) == (4, True, True)
    assert facts["ended"] == {"reason": "finished", "ended_by": "steps", "step": 4, "version": "2.2", "why": ""}


@pytest.mark.parametrize(("limit", "policy"), [(1, "drop"), (4, "wait")])
def test_lag_at_consumption_never_exceeds_the_limit(
    limit: int, policy: str, starter: None, start: Start, tmp_path: Path
) -> None:
    keys = (f"staleness.limit={limit}", f"staleness.policy={policy}", "trainer.steps=10")
    rollout, trainer = start("serve-rollout", *keys), start("train", *keys)
    assert trainer.wait() == 0, trainer.text()
    assert rollout.wait() == 0, rollout.text()
    facts = summary(tmp_path / "run")
    assert facts["lag_limit"] == limit
    assert max(int(lag) for lag in dict(facts["lag_histogram"])) <= limit


def test_colocate_async_runs_both_sides_from_one_command(starter: None, start: Start, tmp_path: Path) -> None:
    trainer = start("train", "--mode", "colocate_async", "trainer.steps=4", *TWICE)
    assert trainer.wait() == 0, trainer.text()
    facts = summary(tmp_path / "run")
    assert (facts["audit_ok"], facts["weights_equal"]) == (True, True)
    assert versions(tmp_path / "run") == [0, 1, 1, 2]
    lines = [line for line in metric_lines(tmp_path / "run") if "actor/pg_loss" in line]
    assert max(line["buffer/lag_max"] for line in lines) <= 1
    assert any("perf/lend/switches" in line for line in lines)
    assert not any("perf/lend/because/short_wait" in line for line in lines), "nobody else makes groups"
