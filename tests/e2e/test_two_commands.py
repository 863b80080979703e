"""The two commands as processes: started in either order, killed for real, and still nothing lost or trained twice."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from asyncrl.schedule import MODES
from tests.support.commands import CONFIG, Command, last_step, metric_lines, without_clock

SMALL = (
    "schedule.groups_per_step=8",
    "rollout.n=8",
    "eval.n=1",
    "metrics.sinks=[]",
    "buffer.claim_s=3",
    "buffer.renew_every_s=1",
    "cluster.stop_timeout_s=10",
)
Start = Callable[..., Command]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a command on the run of this test; whatever still runs at the end is killed."""
    started: list[Command] = []

    def run(*arguments: str, run_dir: Path | None = None) -> Command:
        directory = run_dir or tmp_path / "run"
        directory.mkdir(parents=True, exist_ok=True)
        name, *rest = arguments
        command = Command(
            [name, str(CONFIG), f"run.dir={directory}", f"run.name={directory.name}", *SMALL, *rest],
            directory / f"{name}-{len(started)}.out",
        )
        started.append(command)
        return command

    yield run
    for command in started:
        command.close()


def summary(run_dir: Path) -> dict[str, object]:
    return dict(json.loads((run_dir / "summary.json").read_text()))


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
