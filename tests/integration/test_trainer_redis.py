"""The training loop of two ranks over a real Redis, against the same run of one rank in memory."""

import json
from dataclasses import replace

import pytest

from asyncrl.run.handover import revealed
from buffer import ReplayBuffer
from buffer.versions import pack
from tests.support.redis_server import running_redis
from tests.support.rollout_thread import RolloutThread
from tests.support.tiny_policy import write_tiny_model
from tests.support.trainer_run import (
    GROUP_SIZE,
    make_buffer,
    make_config,
    rollout_for,
    start_trainer,
    with_servers,
)
from tests.support.two_ranks import run_ranks
from weightsync.log import open_log


@pytest.fixture(scope="module")
def server():
    with running_redis() as server:
        yield server


def of_two_sources(group):
    """Every third group lost the reward of its first answer; even ordinals are of one source, odd ones of another."""
    members = group.trajectories
    if group.ordinal % 3 == 0:
        members = (replace(members[0], reward=None, reward_error="timeout"), *members[1:])
    return replace(group, data_source=("toy", "other")[group.ordinal % 2], trajectories=members)


def trained_and_masked(buffer):
    return {key: spent for key, spent in buffer.audit().tokens.fates.items() if key[0] in ("trained", "masked")}


def in_order(lines):
    """By step; the evaluation beside training writes its line when it is over."""
    return sorted(lines, key=lambda line: (line[0], "actor/pg_loss" in line[2], sorted(line[2])))


def test_two_ranks_over_redis_end_where_one_rank_does(server, tmp_path):
    """Version 2 is evaluated beside training: one of two servers is kept there."""
    model_dir = write_tiny_model(tmp_path / "model")
    settings = {
        "staleness": {"limit": 0, "order": "ordinal"},
        "trainer": {"steps": 3, "lease_wait_s": 60.0},
        "eval": {"every_versions": 2, "deadline_s": 60.0},
    }
    single_config = make_config(tmp_path / "one", model_dir, **settings)
    single = start_trainer(single_config, make_buffer(single_config), heldout=3)
    with_servers(single.parts.log, "server-0", "server-1")
    with rollout_for(single, change=of_two_sources).running():
        single.go()

    settings["trainer"] |= {"parallel": {"fsdp": 2}}
    config = make_config(tmp_path / "two", model_dir, **settings)
    (tmp_path / "config.json").write_text(json.dumps(revealed(config)))
    buffer = ReplayBuffer.connect(server.url, "toy", config.buffer, config.staleness)
    log = open_log(server.url, "toy")
    with_servers(log, "server-0", "server-1")
    with RolloutThread(buffer, log, model_dir, GROUP_SIZE, change=of_two_sources).running():
        ranks = run_ranks("tests.support.loop_rank", 2, str(tmp_path / "config.json"), server.url, "3")

    assert [(rank["reason"], rank["version"]) for rank in ranks] == [("finished", pack(1, 3))] * 2
    assert buffer.audit().ok
    assert buffer.counts()["consumed"] == 12
    # Each rank masks tokens of its own groups; the ledger is told of all.
    assert trained_and_masked(buffer) == trained_and_masked(single.parts.buffer)
    assert {source for fate, source in trained_and_masked(buffer) if fate == "masked"} == {"toy", "other"}
    expected = in_order(single.sink.reproducible())
    assert len(ranks[0]["lines"]) == len(expected)
    assert [values["val-aux/version"] for _, _, values in expected if "val-aux/version" in values] == [
        pack(1, number) for number in (0, 2, 3)
    ]
    for (step, branch, values), (expected_step, expected_branch, others) in zip(
        in_order(ranks[0]["lines"]), expected, strict=True
    ):
        assert (step, branch) == (expected_step, expected_branch)
        assert values.keys() == others.keys()
        for name in {
            "actor/pg_loss",
            "actor/grad_norm",
            "critic/rewards/mean",
            "val-core/toy/reward/mean@2",
        } & others.keys():
            assert values[name] == pytest.approx(others[name], abs=1e-3, rel=1e-2), (step, name)
    buffer.close()
