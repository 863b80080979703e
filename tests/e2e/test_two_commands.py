"""The two commands as processes: started in either order, killed for real, and still nothing lost or trained twice."""

import socket
from pathlib import Path

from asyncrl.schedule import MODES
from asyncrl.trainer import checkpoint_files as files
from tests.e2e.conftest import Start
from tests.support.commands import last_step, metric_lines, summary
from tests.support.left_behind import descendants_of, left_of, port_of_server, processes_of


def test_a_run_survives_the_death_of_either_side(starter: None, start: Start, tmp_path: Path) -> None:
    """B180: what a killed command started ends with it, and what that started, whose port can be bound again."""
    run_dir = tmp_path / "run"
    trainer = start("train", "trainer.steps=24", "trainer.checkpoint.every_steps=4")
    trainer.until("the trainer waits for its first groups", lambda: (run_dir / "metrics.jsonl").exists())
    rollout = start("serve-rollout")
    trainer.until("step 5", lambda: last_step(run_dir) >= 5)
    started = descendants_of(rollout.process.pid)
    rollout.kill()
    assert left_of(started) == {}
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port_of_server(started)))
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
    """B181: a checkpoint of the last step, exit code 0 as documented, no traceback, and what was not done is said.

    B179: after SIGTERM nothing is left, Redis, servers and ranks.
    """
    run_dir = tmp_path / "run"
    rollout = start("serve-rollout")
    trainer = start("train", "trainer.steps=12")
    trainer.until("step 3", lambda: last_step(run_dir) >= 3)
    assert rollout.terminate() == 0, rollout.text()
    assert trainer.terminate() == 0, trainer.text()
    stopped_at = last_step(run_dir)
    assert left_of(processes_of(run_dir)) == {}
    assert files.listed(run_dir / "checkpoints")[-1][0].step == stopped_at
    assert "Traceback" not in trainer.text() + (run_dir / "logs" / "rank-0.log").read_text()
    assert summary(run_dir)["ended"] == {
        "reason": "stopped", "ended_by": "stop", "step": stopped_at, "version": f"1.{stopped_at}", "why": "",
    }  # fmt: skip
    assert f"{stopped_at} of 12 in " in trainer.text()
    rollout = start("serve-rollout")
    trainer = start("train", "trainer.steps=12", "--resume")
    assert trainer.wait() == 0, trainer.text()
    assert rollout.wait() == 0, rollout.text()  # the last one out stops Redis
    steps = [int(line["step"]) for line in metric_lines(run_dir) if "actor/pg_loss" in line]
    assert steps == list(range(1, 13)), f"stopped at {stopped_at}: no step twice, none missing"
    assert summary(run_dir)["audit_ok"] is True
