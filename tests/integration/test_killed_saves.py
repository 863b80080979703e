"""kill -9 of a trainer, or of one rank of two, at every line of a checkpoint beside training: the run goes on from a
sound one, and ends with the bits of a run that nobody killed."""

import json

import pytest

from asyncrl.config import ParallelConfig
from asyncrl.run.handover import revealed
from asyncrl.trainer.checkpoint_files import MANIFEST
from buffer import Group, ReplayBuffer
from tests.support.forkserver import run_modules
from tests.support.killed_saver import MOMENTS, REPORTED
from tests.support.ports import reserved_ports
from tests.support.redis_server import running_redis
from tests.support.rollout_thread import RolloutThread
from tests.support.tiny_policy import write_tiny_model
from tests.support.trainer_run import GROUP_SIZE, make_buffer, make_config, rollout_for, start_trainer
from weightsync.log import open_log

FOUND = dict.fromkeys(MOMENTS[:3], 3) | dict.fromkeys(MOMENTS[3:], 5)
"""Moment -> the first step of the trainer that resumes: no more is lost than what came after the newest checkpoint."""

MEMO: dict[int, Group] = {}
TIMEOUT_S = 200.0


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def server():
    with running_redis() as server:
        yield server


def settings(directory, model_dir, name, *, fsdp=1):
    config = make_config(
        directory,
        model_dir,
        staleness={"limit": 0, "order": "ordinal"},
        algorithm={"reward_kl_coef": 0.1, "reward_kl_target": 0.05, "reward_kl_horizon": 20.0},
        trainer={
            "steps": 6,
            "checkpoint": {"every_steps": 2, "keep_last": 1},
            "lease_wait_s": 60.0,
            "parallel": ParallelConfig(fsdp=fsdp),
        },
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


def ranks_of(config, server, *, dies=-1, moment="", resume=False):
    """Exit codes of the ranks of a trainer, negative for a signal."""
    file, world = config.run.directory / "config.json", config.trainer.parallel.world
    file.write_text(json.dumps(revealed(config)))
    arguments = [str(file), server.url, str(dies), moment, "resume" if resume else ""]
    with reserved_ports(1) as (port,):
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
        own = [{**meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
        ended = run_modules("tests.support.killed_saver", arguments, own, config.run.directory, TIMEOUT_S)
    return [rank.code for rank in ended]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_trainer_killed_at(moment, straight, server, model_dir, tmp_path):
    """B151: the checkpoint before is there until the next one is, and nothing half written is taken for one.

    Weights, both moments, random states and every number that no clock gives, the adaptive KL coefficient among them,
    are those of the run that nobody killed.
    """
    name = moment.replace(" ", "-")
    config = settings(tmp_path, model_dir, name)
    buffer, rollout = rollout_of(config, server)
    with rollout.running():
        assert ranks_of(config, server, dies=0, moment=moment) == [-9]
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


@pytest.fixture(scope="module")
def straight_pair(server, model_dir, tmp_path_factory):
    """Hashes of what two ranks saved of the run that nobody killed."""
    config = settings(tmp_path_factory.mktemp("pair"), model_dir, "pair", fsdp=2)
    buffer, rollout = rollout_of(config, server)
    with rollout.running():
        assert ranks_of(config, server) == [0, 0]
    buffer.close()
    return hashes_in(config.run.directory / "checkpoints" / "1.6-step6")


@pytest.mark.parametrize(
    ("dies", "moment", "first"), [(1, "writing", 3), (1, REPORTED, 5), (0, "before the rename", 3)]
)
def test_one_of_two_ranks_killed_in_a_save(dies, moment, first, straight_pair, server, model_dir, tmp_path):
    """The other one ends by itself, with an error; a file that one rank has written makes no checkpoint."""
    config = settings(tmp_path, model_dir, f"pair-{dies}-{moment.replace(' ', '-')}", fsdp=2)
    buffer, rollout = rollout_of(config, server)
    with rollout.running():
        codes = ranks_of(config, server, dies=dies, moment=moment)
        assert (codes[dies], codes[1 - dies]) == (-9, 1)
        assert ranks_of(config, server, resume=True) == [0, 0]
    lines = json.loads((tmp_path / "lines.json").read_text())
    assert [step for step, _, values in lines if "actor/pg_loss" in values] == list(range(first, 7))
    assert buffer.audit().ok
    assert (buffer.counts()["consumed"], buffer.counts()["leased"]) == (24, 0)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["2.6-step6"]
    assert hashes_in(tmp_path / "checkpoints" / "2.6-step6") == straight_pair
    buffer.close()


def rollout_of(config, server):
    """A buffer of the run in Redis, and a rollout thread on it."""
    buffer = ReplayBuffer.connect(server.url, config.run.name, config.buffer, config.staleness)
    log = open_log(str(config.run.directory / "log"), "toy")
    return buffer, RolloutThread(buffer, log, config.model.path, GROUP_SIZE, memo=MEMO)


def tensors_of(run):
    """File of the newest checkpoint -> hash."""
    return hashes_in(run.parts.checkpoints.newest().path)


def hashes_in(checkpoint):
    """File of a rank -> hash."""
    manifest = json.loads((checkpoint / MANIFEST).read_text())
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
