"""kill -9 of a trainer at every line of a checkpoint beside training: the run goes on from a sound one, and ends with
the bits of a run that nobody killed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from asyncrl.run.handover import revealed
from buffer import ReplayBuffer
from tests.support.killed_saver import MOMENTS
from tests.support.redis_server import running_redis
from tests.support.rollout_thread import RolloutThread
from tests.support.tiny_policy import write_tiny_model
from tests.support.trainer_run import GROUP_SIZE, make_buffer, make_config, rollout_for, start_trainer
from weightsync.log import open_log

FOUND = dict.fromkeys(MOMENTS[:3], 3) | dict.fromkeys(MOMENTS[3:], 5)
"""Moment -> the first step of the trainer that resumes: no more is lost than what came after the newest checkpoint."""


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
        trainer={"steps": 6, "checkpoint": {"every_steps": 2, "keep_last": 1}, "lease_wait_s": 60.0},
    )
    return config.model_copy(update={"run": config.run.model_copy(update={"name": name})})


@pytest.fixture(scope="module")
def straight(model_dir, tmp_path_factory):
    """Weights and lines of the run that nobody killed."""
    config = settings(tmp_path_factory.mktemp("straight"), model_dir, "straight")
    run = start_trainer(config, make_buffer(config))
    with rollout_for(run).running():
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
    """B151: the checkpoint before is there until the next one is, and nothing half written is taken for one."""
    name = moment.replace(" ", "-")
    config = settings(tmp_path, model_dir, name)
    (tmp_path / "config.json").write_text(json.dumps(revealed(config)))
    buffer = ReplayBuffer.connect(server.url, name, config.buffer, config.staleness)
    with RolloutThread(buffer, open_log(str(tmp_path / "log"), "toy"), model_dir, GROUP_SIZE).running():
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
    for (weight, value), other in zip(
        straight.parts.policy.named_parameters().items(), run.parts.policy.named_parameters().values(), strict=True
    ):
        assert torch.equal(value, other), weight
    buffer.close()
