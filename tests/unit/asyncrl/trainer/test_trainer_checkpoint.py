"""Checkpoints: complete or absent, newest by number, never the last good one lost, and training goes on exactly."""

import json
import logging
import os
import random
import resource
import shutil
import signal
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from asyncrl.config import CheckpointConfig
from asyncrl.errors import CheckpointError
from asyncrl.trainer import checkpoint, retention
from asyncrl.trainer import checkpoint_files as files
from asyncrl.trainer.checkpoint import Checkpoints
from asyncrl.trainer.checkpoint_files import CheckpointName
from asyncrl.trainer.parallel import OneRank
from asyncrl.trainer.rank_files import RankFiles
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
    """B154: 9, 10 and 100, beside names that only look like one."""
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
    """B150: a directory that is named as a checkpoint counts only with every byte that its manifest promises."""
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


@pytest.mark.parametrize("written", [0, 2, 99])
def test_another_format_is_refused_with_both_numbers(store, policy, written):
    """B156: older or newer, nobody guesses at what another version wrote; an older checkpoint is not taken instead."""
    save(store, policy, 10)
    path = save(store, policy, 20) / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": written}))
    with pytest.raises(CheckpointError, match=f"checkpoint format {written}, this version reads 1"):
        store.newest()


def test_a_save_that_was_killed_leaves_the_older_one_and_is_cleared_away_by_the_next(store, policy):
    """B151: what is half written lies beside its place until it is whole."""
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
    """B158: 10 is good, 20 and 30 are broken, two are kept: 10 stays when 40 comes."""
    store = Checkpoints(tmp_path, CheckpointConfig(keep_last=100))
    save(store, policy, 10)
    for step in (20, 30):
        (save(store, policy, step) / "rank-00000.safetensors").unlink()
    save(Checkpoints(tmp_path, CheckpointConfig(keep_last=2)), policy, 40)
    assert [row["step"] for row in store.describe(verify=False) if row["state"] == "complete"] == ["40", "10"]


def test_the_one_that_is_resumed_from_stays_until_the_next_is_complete(tmp_path, policy):
    """B157: with keep_last = 1 a save that fails deletes nothing."""
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


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no second file system at hand")
def test_what_is_half_written_lies_on_the_file_system_of_its_target(store, policy, monkeypatch):
    """B152: the system's folder for temporary files may be another file system, which no rename reaches."""
    elsewhere = Path("/dev/shm")
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    before, seen = set(elsewhere.glob("*step*")), []
    write_state = files.write_state

    def looking(directory, *args):
        seen.append((directory.parent, set(elsewhere.glob("*step*")) - before))
        write_state(directory, *args)

    monkeypatch.setattr(files, "write_state", looking)
    save(store, policy, 1)
    assert seen == [(store._directory, set())]
    assert elsewhere.stat().st_dev != store._directory.stat().st_dev


@pytest.mark.parametrize("pointer", ["1.20-step20", "", "step_20"])
def test_no_pointer_is_asked_which_one_is_newest(store, policy, pointer):
    """B153: a file that names the latest may be ahead of what is there, or empty; what is there decides."""
    save(store, policy, 10)
    (store._directory / "1.20-step20").mkdir()
    for name in ("LATEST", "latest_checkpointed_iteration.txt"):
        (store._directory / name).write_text(pointer)
    assert store.newest().name.step == 10


def test_tensors_without_the_ledger_are_no_checkpoint(store, policy, caplog):
    """B155: trainer and buffer are saved by one rename; a newer one that lacks the buffer's part is passed over."""
    save(store, policy, 10)
    path = save(store, policy, 20)
    (path / "state.json").unlink()
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["files"]["state.json"]
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert store.newest().name.step == 10
    assert "state.json is not in manifest.json" in caplog.text


def test_any_checkpoint_is_found_by_its_name_or_step_and_a_wrong_one_is_told_what_there_is(store, policy):
    save(store, policy, 10)
    save(store, policy, 20)
    save(store, policy, 20, branch=2)
    assert store.named("10").name == store.named("1.10-step10").name == CheckpointName(1, 10, 10)
    assert store.named("20").name == CheckpointName(2, 20, 20)  # the branch that survived
    with pytest.raises(
        CheckpointError, match=r"no checkpoint '15'; there are: 1\.10-step10, 1\.20-step20, 2\.20-step20"
    ):
        store.named("15")
    flip_a_bit(store._directory / "1.10-step10" / "rank-00000.safetensors")
    with pytest.raises(CheckpointError, match=r"is damaged: rank-00000\.safetensors is not what was written"):
        store.named("10")


def test_a_copy_is_what_was_there_and_its_buffers_are_made_once(model_dir, store):
    policy = make_policy(model_dir)
    train(policy, make_batch(policy, make_groups(model_dir, 2, 3)))
    copied, num_bytes = store.copy(policy), store._copy.num_bytes
    before = {name: value.detach().clone() for name, value in policy.named_parameters().items()}
    train(policy, make_batch(policy, make_groups(model_dir, 2, 3, seed=1)))
    store.save(CheckpointName(1, 1, 1), policy, state(policy), RANKS, copied=copied)
    with RankFiles(store.newest().path) as stored:
        for name, value in before.items():
            assert torch.equal(stored.read(f"weights/{name}"), value), name
    parameters = sum(value.numel() for value in before.values())
    assert 12 * parameters <= num_bytes < 12 * parameters + 50_000  # weights, two moments, random states
    buffers = {piece.name: piece.tensor.data_ptr() for piece in copied}
    assert {piece.name: piece.tensor.data_ptr() for piece in store.copy(policy)} == buffers


def test_a_rank_that_cannot_write_for_any_reason_is_a_checkpoint_error(store, policy, monkeypatch):
    """The others wait for its report; without one they would wait for ever."""

    def failing(*args):
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(checkpoint, "write", failing)
    with pytest.raises(CheckpointError, match=r"rank 0 could not write .*: the device is gone"):
        save(store, policy, 1)
    assert names(store) == []


def test_what_rests_on_a_checkpoint_is_done_once_it_is_there_and_its_failure_is_raised(store, policy):
    there = []

    def failing():
        there.extend(names(store))
        raise ConnectionError("Redis is gone")

    with pytest.raises(ConnectionError):
        store.save(CheckpointName(1, 1, 1), policy, state(policy), RANKS, then=failing)
    assert there == names(store) == ["1.1-step1"]
