"""The two commands as processes: started in either order, killed for real, and still nothing lost or trained twice."""

from pathlib import Path

from asyncrl.schedule import MODES
from tests.e2e.conftest import Start
from tests.support.commands import last_step, metric_lines, summary


def test_a_run_survives_the_death_of_either_side(starter: None, start: Start, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    trainer = start("train", "trainer.steps=24", "trainer.checkpoint.every_steps=4")
    trainer.until("the trainer waits for its first groups", lambda: (run_dir / "metrics.jsonl").exists())
    rollout = start("serve-rollout")
    trainer.until("step 5", lambda: last_step(run_dir) >= 5)
    rollout.kill()
    rollout = start("serve-rollout")
    trainer.until("step 12", lambda: last_step(run_dir) >= 12)
    trainer.kill()
    trainer = start("train", "trainer.steps=24", "trainer.checkpoint.every_steps=4", "--resume")
    assert trainer.wait() == 0, trainer.text()
    assert rollout.wait() == 0, rollout.text()  # a finished run stops its rollout cluster
    facts = summary(run_dir)
    assert facts["audit_ok"] is True
    assert facts["weights_equal"] is True
    assert facts["steps"] == 24
    assert max(int(lag) for lag in dict(facts["lag_histogram"])) <= MODES["separate_async"].limit
    assert trainer.text().rstrip().endswith(str(run_dir / "summary.json"))


def test_weights_cross_from_the_trainers_own_memory(starter: None, start: Start, tmp_path: Path) -> None:
    keys = ("weightsync.transport=tcp", "weightsync.key=a secret of sixteen", "trainer.steps=3")
    rollout, trainer = start("serve-rollout", *keys), start("train", *keys)
    assert trainer.wait() == 0, trainer.text()
    assert rollout.wait() == 0, rollout.text()
    facts = summary(tmp_path / "run")
    assert (facts["steps"], facts["audit_ok"], facts["weights_equal"]) == (3, True, True)


def test_a_graceful_stop_loses_nothing_and_goes_on(starter: None, start: Start, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    rollout = start("serve-rollout")
    trainer = start("train", "trainer.steps=12")
    trainer.until("step 3", lambda: last_step(run_dir) >= 3)
    assert rollout.terminate() == 0, rollout.text()
    assert trainer.terminate() == 0, trainer.text()
    stopped_at = last_step(run_dir)
    rollout = start("serve-rollout")
    trainer = start("train", "trainer.steps=12", "--resume")
    assert trainer.wait() == 0, trainer.text()
    steps = [int(line["step"]) for line in metric_lines(run_dir) if "actor/pg_loss" in line]
    assert steps == list(range(1, 13)), f"stopped at {stopped_at}: no step twice, none missing"
    assert summary(run_dir)["audit_ok"] is True
