"""A trainer that lends its device, as processes: its rank is killed, then told to leave; nothing is lost or made
twice."""

import os
import signal
from pathlib import Path

from asyncrl.errors import ProcessDied
from tests.e2e.conftest import Start
from tests.support.commands import Command, last_step, metric_lines, summary

KEYS = (
    "inference.max_running_requests=2",  # generation takes longer than training, so that there is something to wait for
    "trainer.steps=7",
    "trainer.checkpoint.every_steps=2",
)
LENDING = ("schedule.lend_trainer_gpus=true", *KEYS)


def child_of(command: Command, *words: str) -> int:
    """Process id of the command's child whose command line has these words."""
    pid = command.process.pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        line = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
        if all(word in line for word in words):
            return int(child)
    raise AssertionError(f"no child {words}: {command.text()}")


def num_loans(run_dir: Path) -> float:
    """How often the devices were taken back from a server."""
    return sum(line.get("perf/lend/switches", 0.0) for line in metric_lines(run_dir))


def test_a_run_that_lends_survives_a_killed_rank_and_a_stop(starter: None, start: Start, tmp_path: Path) -> None:
    """B182: ranks that leave in good order although nobody stopped the run are no success."""
    run_dir = tmp_path / "run"
    rollout, trainer = start("serve-rollout", *KEYS), start("train", *LENDING)
    trainer.until("a loan", lambda: last_step(run_dir) >= 2 and num_loans(run_dir) > 0)
    os.kill(child_of(trainer, "trainer-rank"), signal.SIGKILL)
    trainer.until("a step after it", lambda: "1 of 3 restarts" in trainer.text() and last_step(run_dir) >= 4)
    assert child_of(trainer, "server-host", "--lent")
    os.kill(child_of(trainer, "trainer-rank"), signal.SIGTERM)
    assert trainer.wait() == ProcessDied.exit_code, trainer.text()
    assert f"ran {last_step(run_dir)} of 7 steps" in trainer.text().splitlines()[-1]

    trainer = start("train", *LENDING, "--resume")
    assert trainer.wait() == 0, trainer.text()
    assert rollout.wait() == 0, rollout.text()
    facts = summary(run_dir)
    assert (facts["audit_ok"], facts["weights_equal"], facts["steps"]) == (True, True, 7)
    lines = [line for line in metric_lines(run_dir) if "actor/pg_loss" in line]
    assert all(line["buffer/lag_max"] <= 2 for line in lines)
    assert {name for line in lines for name in line if name.startswith("perf/lend/because/")}
