"""kill -9 of a trainer at every line of a checkpoint beside training: the run goes on from a sound one, and ends with
the bits of a run that nobody killed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.run.handover import revealed
from asyncrl.trainer.checkpoint_files import MANIFEST
from buffer import Group, ReplayBuffer
from tests.support.killed_saver import MOMENTS
from tests.support.redis_server import running_redis
from tests.support.rollout_thread import RolloutThread
from tests.support.tiny_policy import write_tiny_model
from tests.support.trainer_run import GROUP_SIZE, make_buffer, make_config, rollout_for, start_trainer
from weightsync.log import open_log

FOUND = dict.fromkeys(MOMENTS[:3], 3) | dict.fromkeys(MOMENTS[3:], 5)
"""Moment -> the first step of the trainer that resumes: no more is lost than what came after the newest checkpoint."""

MEMO: dict[int, Group] = {}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def server():
    with running_redis() as server:
        yield server


def settings(directory, model_dir, name):
    config = make_config(
        directory,
        model_dir,
        staleness={"limit": 0, "order": "ordinal"},
        algorithm={"reward_kl_coef": 0.1, "reward_kl_target": 0.05, "reward_kl_horizon": 20.0},
        trainer={"steps": 6, "checkpoint": {"every_steps": 2, "keep_last": 1}, "lease_wait_s": 60.0},
    )
    return config.model_copy(update={"run": config.run.model_copy(update={"name": name})})


@pytest.fixture(scope="module")
def straight(model_dir, tmp_path_factory):
    """Weights and lines of the run that nobody killed."""
    config = settings(tmp_path_factory.mktemp("straight"), model_dir, "straight")
    run = start_trainer(config, make_buffer(config))
    with rollout_for(run, memo=MEMO).running():
        run.go()
    return run


@pytest.fixture(scope="module")
def killed(server):
    """A process that runs trainers which kill themselves; each line that it is told is one."""
    command = [sys.executable, "-m", "tests.support.killed_saver", server.url]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        yield process
        process.stdin.close()


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_trainer_killed_at(moment, straight, killed, server, model_dir, tmp_path):
    """B151: the checkpoint before is there until the next one is, and nothing half written is taken for one.

    Weights, both moments, random states and every number that no clock gives, the adaptive KL coefficient among them,
    are those of the run that nobody killed.
    """
    name = moment.replace(" ", "-")
    config = settings(tmp_path, model_dir, name)
    (tmp_path / "config.json").write_text(json.dumps(revealed(config)))
    buffer = ReplayBuffer.connect(server.url, name, config.buffer, config.staleness)
    log = open_log(str(tmp_path / "log"), "toy")
    with RolloutThread(buffer, log, model_dir, GROUP_SIZE, memo=MEMO).running():
        killed.stdin.write(f"{moment} {tmp_path / 'config.json'}\n")
        killed.stdin.flush()
        assert killed.stdout.readline().strip() == "-9"
        run = start_trainer(config, buffer)
        outcome = run.go(resume=True)
    trained = [step for step, _, values in run.sink.lines if "actor/pg_loss" in values]
    assert (outcome.reason, trained) == ("finished", list(range(FOUND[moment], 7)))
    assert buffer.audit().ok
    assert (buffer.counts()["consumed"], buffer.counts()["leased"]) == (24, 0)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["2.6-step6"]
    assert tensors_of(run) == tensors_of(straight)
    assert differing(numbers_of(run, since=trained[0]), numbers_of(straight, since=trained[0])) == set()
    buffer.close()


def tensors_of(run):
    """File of the newest checkpoint -> hash."""
    manifest = json.loads((run.parts.checkpoints.newest().path / MANIFEST).read_text())
    return {name: entry["blake3"] for name, entry in manifest["files"].items() if name.startswith("rank-")}


def numbers_of(run, since):
    """(step, name) -> number, but for what every resume changes: how weights travel to servers (a branch begins with an
    anchor of its own), and the groups of the branch that was given up, which leave as stale where a kill left any."""
    return {
        (step, name): value
        for step, _, values in run.sink.reproducible()
        for name, value in values.items()
        if step >= since and not name.startswith(("weightsync/", "buffer/left", "buffer/num_left"))
    }


def differing(one, other):
    return {key for key in {*one, *other} if one.get(key) != other.get(key)}
