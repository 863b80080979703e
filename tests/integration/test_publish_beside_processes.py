"""Versions beside the steps of real processes: two ranks with two groups of messages, and a trainer that is killed."""

import json
import signal

import pytest

from asyncrl.run.handover import revealed
from buffer import ReplayBuffer
from buffer.versions import pack
from tests.support.forkserver import run_modules
from tests.support.redis_server import running_redis
from tests.support.rollout_thread import RolloutThread
from tests.support.tiny_policy import write_tiny_model
from tests.support.trainer_run import GROUP_SIZE, make_config, start_trainer
from tests.support.two_ranks import run_ranks
from weightsync.digest import digest_of_model_dir
from weightsync.log import open_log
from weightsync.manifest import Manifest


@pytest.fixture
def server():
    with running_redis() as server:
        yield server


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def made(directory, model_dir, *, fsdp=1):
    trainer = {"parallel": {"fsdp": fsdp}, "steps": 3, "lease_wait_s": 60.0}
    config = make_config(directory / "run", model_dir, staleness={"limit": 2}, trainer=trainer)
    (directory / "config.json").write_text(json.dumps(revealed(config)))
    return config, str(directory / "config.json")


def test_two_ranks_publish_beside_their_steps_and_end_with_the_weights_of_head(server, model_dir, tmp_path):
    config, file = made(tmp_path, model_dir, fsdp=2)
    buffer = ReplayBuffer.connect(server.url, "toy", config.buffer, config.staleness)
    log = open_log(server.url, "toy")
    with RolloutThread(buffer, log, model_dir, GROUP_SIZE).running():
        ranks = run_ranks("tests.support.loop_rank", 2, file, server.url, "0")
    assert [(rank["reason"], rank["version"]) for rank in ranks] == [("finished", pack(1, 3))] * 2
    told = [values["weightsync/version"] for _, _, values in ranks[0]["lines"] if "weightsync/version" in values]
    assert told == [pack(1, number) for number in range(4)]
    head = log.head()
    assert head.version == pack(1, 3)
    export = tmp_path / "run" / "export"
    assert digest_of_model_dir(export, Manifest.from_model_dir(export)) == head.digest
    assert buffer.audit().ok
    buffer.close()


@pytest.mark.parametrize(("moment", "head"), [("put", pack(1, 0)), ("flip", pack(1, 1))])
def test_a_trainer_killed_with_a_version_on_its_way_resumes_and_trains_every_group_once(
    server, model_dir, tmp_path, moment, head
):
    config, file = made(tmp_path, model_dir)
    buffer = ReplayBuffer.connect(server.url, "toy", config.buffer, config.staleness)
    log = open_log(server.url, "toy")
    with RolloutThread(buffer, log, model_dir, GROUP_SIZE).running():
        (died,) = run_modules("tests.support.dying_rank", (file, server.url, moment), [{}], tmp_path, 240.0)
        assert died.code == -signal.SIGKILL, died.err
        assert log.head().version == head
        resumed = start_trainer(config, buffer, url=server.url)
        outcome = resumed.go(resume=True)
    assert (outcome.reason, outcome.version) == ("finished", pack(2, 3))
    assert log.head().version == pack(2, 3)
    export = tmp_path / "run" / "export"
    assert digest_of_model_dir(export, Manifest.from_model_dir(export)) == log.head().digest
    assert buffer.audit().ok
    assert buffer.counts()["consumed"] == 12
    buffer.close()
