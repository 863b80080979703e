"""The modes and limits as whole runs: lag within the limit, and limit 0 the same as sync bit for bit."""

from pathlib import Path

import pytest

from tests.e2e.conftest import Start
from tests.support.commands import metric_lines, summary, without_clock


def test_separate_async_at_limit_zero_is_sync_bit_for_bit(starter: None, start: Start, tmp_path: Path) -> None:
    same = ("trainer.steps=4", "staleness.order=ordinal", "run.name=same")
    sync, separate = tmp_path / "sync", tmp_path / "separate"
    together = start("train", "--mode", "sync", *same, run_dir=sync)
    assert together.wait() == 0, together.text()
    rollout = start("serve-rollout", *same, "staleness.limit=0", run_dir=separate)
    trainer = start("train", "--mode", "separate_async", "staleness.limit=0", *same, run_dir=separate)
    assert trainer.wait() == 0, trainer.text()
    assert rollout.wait() == 0, rollout.text()
    left, right = ([without_clock(line) for line in metric_lines(run)] for run in (sync, separate))
    assert len(left) == 6  # before, four steps, after
    assert left == right


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
    trainer = start("train", "--mode", "colocate_async", "trainer.steps=4")
    assert trainer.wait() == 0, trainer.text()
    assert summary(tmp_path / "run")["audit_ok"] is True
