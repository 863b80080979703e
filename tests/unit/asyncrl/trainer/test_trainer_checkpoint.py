"""Checkpoints: complete or absent, newest by number, never the last good one lost, and training goes on exactly."""

import json
import logging
import random
import resource
import shutil
import signal

import numpy as np
import pytest
import torch

from asyncrl.config import CheckpointConfig
from asyncrl.errors import CheckpointError
from asyncrl.trainer import checkpoint_files as files
from asyncrl.trainer import retention
from asyncrl.trainer.checkpoint import Checkpoints
from asyncrl.trainer.checkpoint_files import CheckpointName
from asyncrl.trainer.parallel import OneRank
from tests.support.tiny_policy import make_batch, make_groups, make_policy, train, write_tiny_model

RANKS = OneRank()


@pytest.fixture(scope="module")
def policy(model_dir):
    return make_policy(model_dir)


@pytest.fixture
def store(tmp_path):
    return Checkpoints(tmp_path / "checkpoints", CheckpointConfig(keep_last=100))


def state(policy, **more):
    return {"step": 1, "optimizer_steps": policy.optimizer_steps, "ledger": {}, "digests": {}, **more}


def save(store, policy, step, branch=1):
    return store.save(CheckpointName(branch, step, step), policy, state(policy), RANKS)


def names(store):
    return [path.name for _, path in files.listed(store._directory)]


def test_training_goes_on_after_a_checkpoint_as_if_never_interrupted(model_dir, store):
    groups = [make_groups(model_dir, 2, 3, seed=s) for s in range(4)]
    straight = make_policy(model_dir)
    for part in groups[:2]:
        train(straight, make_batch(straight, part))
    save(store, straight, 2)
    for part in groups[2:]:
        train(straight, make_batch(straight, part))

    resumed = make_policy(model_dir)
    store.load(store.newest(), resumed)
    assert resumed.optimizer_steps == 2
    for part in groups[2:]:
        train(resumed, make_batch(resumed, part))
    for (name, one), (_, other) in zip(
        straight.named_parameters().items(), resumed.named_parameters().items(), strict=True
    ):
        assert torch.equal(one, other), name


def test_random_sources_come_back(model_dir, store):
    policy = make_policy(model_dir)
    random.seed(5), np.random.seed(6), torch.manual_seed(7)
    save(store, policy, 1)
    expected = (random.random(), np.random.rand(), torch.rand(1).item())
    store.load(store.newest(), policy)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected


def test_the_newest_is_the_largest_number_not_the_last_in_the_alphabet(store, policy):
    for step in (9, 10, 100):
        save(store, policy, step)
    for odd in (".tmp-1.200-step200-ab", "1.300-step300 copy", "step_400", "1.5-step"):
        (store._directory / odd).mkdir()
    assert store.newest().name == CheckpointName(1, 100, 100)


def test_a_newer_branch_outranks_a_higher_number(store, policy):
    save(store, policy, 30, branch=1)
    save(store, policy, 20, branch=2)
    assert store.newest().name == CheckpointName(2, 20, 20)


def test_without_any_checkpoint_there_is_none(store):
    assert store.newest() is None


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda path: (path / "rank-00000.safetensors").write_bytes(b"x" * 100), "has 100 bytes"),
        (lambda path: flip_a_bit(path / "rank-00000.safetensors"), "is not what was written: its hash differs"),
        (lambda path: (path / "state.json").unlink(), "state.json is missing"),
        (lambda path: (path / "manifest.json").write_text(""), "manifest.json cannot be read"),
        (lambda path: (path / "manifest.json").unlink(), "manifest.json cannot be read"),
    ],
)
def test_a_damaged_one_is_named_and_the_next_older_one_used(store, policy, caplog, damage, found):
    save(store, policy, 10)
    damage(save(store, policy, 20))
    with caplog.at_level(logging.WARNING):
        assert store.newest().name.step == 10
    assert "1.20-step20 is damaged" in caplog.text
    assert found in caplog.text
    rows = store.describe(verify=True)
    assert [(row["step"], row["state"] == "complete") for row in rows] == [("20", False), ("10", True)]
    assert found in rows[0]["state"]


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_when_all_are_damaged_the_run_does_not_start_from_nothing(store, policy):
    (save(store, policy, 10) / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"None of the 1 checkpoints is sound.*state\.json is missing"):
        store.newest()


def test_a_format_of_the_future_is_refused_with_both_numbers(store, policy):
    save(store, policy, 10)
    path = save(store, policy, 20) / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(CheckpointError, match="checkpoint format 99, this version reads 1"):
        store.newest()


def test_a_save_that_was_killed_leaves_the_older_one_and_is_cleared_away_by_the_next(store, policy):
    save(store, policy, 10)
    half = store._directory / ".tmp-1.20-step20-dead"
    half.mkdir()
    (half / "rank-00000.safetensors").write_bytes(b"half")
    assert store.newest().name.step == 10
    save(store, policy, 30)
    assert not half.exists()
    assert names(store) == ["1.10-step10", "1.30-step30"]


def test_a_full_disk_is_a_clear_error_and_costs_nothing_that_was_there(store, policy):
    save(store, policy, 10)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(CheckpointError, match=r"1\.20-step20 was not written.*GB free.*Free some space"):
            save(store, policy, 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert sorted(path.name for path in store._directory.iterdir()) == ["1.10-step10"]
    assert store.newest().name.step == 10
    save(store, policy, 20)
    assert store.newest().name.step == 20


def test_a_directory_that_cannot_be_made_is_a_checkpoint_error(tmp_path, policy):
    (tmp_path / "checkpoints").write_text("a file is in the way")
    store = Checkpoints(tmp_path / "checkpoints", CheckpointConfig())
    with pytest.raises(CheckpointError, match="was not written"):
        save(store, policy, 1)


def test_keep_last_counts_complete_ones_only(tmp_path, policy):
    store = Checkpoints(tmp_path, CheckpointConfig(keep_last=100))
    save(store, policy, 10)
    for step in (20, 30):
        (save(store, policy, step) / "rank-00000.safetensors").unlink()
    save(Checkpoints(tmp_path, CheckpointConfig(keep_last=2)), policy, 40)
    assert [row["step"] for row in store.describe(verify=False) if row["state"] == "complete"] == ["40", "10"]


def test_the_one_that_is_resumed_from_stays_until_the_next_is_complete(tmp_path, policy):
    store = Checkpoints(tmp_path, CheckpointConfig(keep_last=1))
    save(store, policy, 10)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(CheckpointError):
            save(store, policy, 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert names(store) == ["1.10-step10"]
    save(store, policy, 20)
    assert names(store) == ["1.20-step20"]


def test_keep_every_and_anchors_stay_whatever_their_age():
    every = [CheckpointName(1, step, step) for step in range(10, 80, 10)]
    gone = retention.expired(every, CheckpointConfig(keep_last=2, keep_every=30), in_use=[every[0]])
    assert [name.step for name in gone] == [20, 40, 50]


def test_a_directory_that_the_log_names_as_an_anchor_is_not_deleted(tmp_path, policy):
    store = Checkpoints(tmp_path, CheckpointConfig(keep_last=1), in_use=lambda: [tmp_path / "1.10-step10"])
    for step in (10, 20, 30):
        save(store, policy, step)
    assert names(store) == ["1.10-step10", "1.30-step30"]


def test_the_same_checkpoint_again_is_left_as_it_is(store, policy):
    path = save(store, policy, 10)
    before = (path / "rank-00000.safetensors").stat().st_mtime_ns
    assert save(store, policy, 10) == path
    assert (path / "rank-00000.safetensors").stat().st_mtime_ns == before


def test_a_damaged_one_of_the_same_name_is_replaced(store, policy):
    (save(store, policy, 10) / "state.json").unlink()
    save(store, policy, 10)
    assert store.describe(verify=True)[0]["state"] == "complete"
    save(store, policy, 11)
    assert [path.name for path in store._directory.iterdir() if path.name.startswith(".")] == []


def test_a_checkpoint_of_another_model_is_refused(store, policy, tmp_path):
    save(store, policy, 10)
    other = write_tiny_model(tmp_path / "other")
    other_policy = make_policy(other)
    other_policy.model.module.model.norm.register_parameter("extra", torch.nn.Parameter(torch.zeros(1)))
    with pytest.raises(CheckpointError, match=r"model\.norm\.extra is only in the model"):
        store.load(store.newest(), other_policy)


def test_the_config_in_the_state_survives_and_hides_no_secret_in_the_open(store, policy):
    path = store.save(CheckpointName(1, 1, 1), policy, state(policy, config={"run": {"name": "x"}}), RANKS)
    assert files.read_state(path)["config"] == {"run": {"name": "x"}}


def test_a_missing_rank_file_is_noticed(store, policy, tmp_path):
    path = save(store, policy, 10)
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    (copy / "rank-00000.safetensors").unlink()
    assert files.problem(copy, hashes=False) == "rank-00000.safetensors is missing"
