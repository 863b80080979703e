"""`asyncrl train` with two ranks, of which one is killed in the middle of a step: the run goes on by itself, and ends
with the bits of one that nobody disturbed."""

import os
import signal
from pathlib import Path

import pytest

from asyncrl.load_config import load
from asyncrl.report.lines import read
from asyncrl.run.existing import open_existing
from asyncrl.trainer import checkpoint_files as files
from scripts.benches.trainer_cases import resume
from tests.e2e.conftest import SMALL, Start
from tests.support.commands import CONFIG, last_step, summary
from tests.support.left_behind import processes_of

PER_STEP, EVERY = 8, 2
KEYS = (
    *("trainer.steps=5", f"trainer.checkpoint.every_steps={EVERY}", "run.name=ranks", "trainer.device=cpu"),
    *("trainer.parallel.fsdp=2", "staleness.order=ordinal", "actor.ppo_epochs=8"),
)


def process_of(run_dir: Path, rank: int) -> int:
    """The process of a rank."""
    (pid,) = (
        pid
        for pid in processes_of(run_dir, "trainer-rank")
        if f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    )
    return pid


def saved_step(run_dir: Path) -> int:
    """Of the newest checkpoint, 0 before the first."""
    return max((name.step for name, _ in files.listed(run_dir / "checkpoints")), default=0)


@pytest.mark.timeout(600)  # six imports of torch and two whole runs on two busy cores
def test_a_rank_that_dies_costs_what_came_after_the_newest_checkpoint_and_nothing_else(
    starter: None, start: Start, tmp_path: Path
) -> None:
    """B186: which of them, and by which signal, is said; no group is lost or trained twice."""
    disturbed, straight = tmp_path / "disturbed", tmp_path / "straight"
    train = start("train", "--mode", "sync", *KEYS, run_dir=disturbed)
    beside = start("train", "--mode", "sync", *KEYS, run_dir=straight)
    train.until("a step after a checkpoint", lambda: last_step(disturbed) > EVERY and saved_step(disturbed) >= EVERY)
    with open_existing(load(CONFIG, [*KEYS, *SMALL, f"run.dir={disturbed}"]).config) as (buffer, _):

        def is_in_a_step() -> bool:
            leased = [held.entry.ordinal // PER_STEP + 1 for held in buffer.groups("leased")]
            return max(leased, default=0) == last_step(disturbed) + 1

        train.until("the middle of a step", is_in_a_step)
        os.kill(process_of(disturbed, 1), signal.SIGKILL)
    assert train.wait() == 0, train.text()
    assert beside.wait() == 0, beside.text()
    assert "rank-1 ended by SIGKILL without a reason" in train.text()
    assert "(1 of 3 restarts)" in train.text()
    trained = [(line.branch, line.step) for line in read(disturbed) if "actor/pg_loss" in line.values]
    first = [step for branch, step in trained if branch == 1]
    assert first == list(range(1, len(first) + 1))
    goes_on = len(first) // EVERY * EVERY + 1
    assert [step for branch, step in trained if branch == 2] == list(range(goes_on, 6)), "from the newest checkpoint"
    assert resume.differences(straight, disturbed, resume.OF_A_RESUME) == []
    for facts in (summary(disturbed), summary(straight)):
        assert (facts["steps"], facts["audit_ok"], facts["weights_equal"]) == (5, True, True)
