"""Which checkpoints stay, by age, by multiple, by score, and while a score is awaited."""

import pytest

from asyncrl.config import CheckpointConfig
from asyncrl.trainer import checkpoint_files as files
from asyncrl.trainer.checkpoint import Checkpoints
from asyncrl.trainer.checkpoint_files import CheckpointName
from asyncrl.trainer.parallel import OneRank
from asyncrl.trainer.retention import expired
from tests.support.tiny_policy import make_policy

EVERY = [CheckpointName(1, step, step) for step in range(10, 80, 10)]


def gone(scores=None, **keep):
    scored = {name: scores[name.step] for name in EVERY if name.step in (scores or {})}
    return [name.step for name in expired(EVERY, CheckpointConfig(**keep), scores=scored)]


def test_the_best_stay_and_of_equal_ones_the_newer():
    scores = {10: 0.9, 20: 0.5, 30: 0.9, 40: 0.7}
    assert gone(scores, keep_last=1, keep_best=1) == [10, 20, 40, 50, 60]
    assert gone(scores, keep_last=1, keep_best=2) == [20, 40, 50, 60]
    assert gone(scores, keep_last=1, keep_best=9) == [50, 60]


def test_without_keep_best_a_score_keeps_nothing():
    assert gone({10: 0.9}, keep_last=2) == [10, 20, 30, 40, 50]


@pytest.fixture(scope="module")
def policy(model_dir):
    return make_policy(model_dir)


def save(store, policy, step):
    return store.save(CheckpointName(1, step, step), policy, {"optimizer_steps": 0}, OneRank())


def steps(store):
    return [int(row["step"]) for row in reversed(store.describe(verify=True))]


def test_a_score_may_come_before_its_checkpoint_or_long_after_it(tmp_path, policy):
    store = Checkpoints(tmp_path, CheckpointConfig(keep_last=1, keep_best=1))
    late, early = CheckpointName(1, 1, 1), CheckpointName(1, 3, 3)
    store.scores.expect(late)
    save(store, policy, 1)
    save(store, policy, 2)
    store.score(early, 0.8)
    assert steps(store) == [1, 2]  # 1 waits for its score
    save(store, policy, 3)
    assert [row["score"] for row in store.describe(verify=True)] == [0.8, None]
    store.score(late, 0.9)
    save(store, policy, 4)
    assert steps(store) == [1, 4]
    assert store.best().name == late


def test_a_score_that_never_comes_keeps_nothing_for_ever(tmp_path, policy):
    store = Checkpoints(tmp_path, CheckpointConfig(keep_last=1, keep_best=1))
    store.scores.expect(CheckpointName(1, 1, 1))
    save(store, policy, 1)
    store.score(CheckpointName(1, 1, 1), None)
    save(store, policy, 2)
    assert steps(store) == [2]
    assert store.best() is None


def test_a_damaged_best_one_is_passed_over(tmp_path, policy, caplog):
    store = Checkpoints(tmp_path, CheckpointConfig(keep_last=9))
    for step, score in ((1, 0.5), (2, 0.9)):
        save(store, policy, step)
        store.score(CheckpointName(1, step, step), score)
    (tmp_path / "1.2-step2" / "rank-00000.safetensors").write_bytes(b"x")
    assert store.best().name.step == 1
    assert "1.2-step2 is damaged" in caplog.text


def test_a_score_that_cannot_be_read_is_told_and_counts_as_none(tmp_path, policy, caplog):
    path = save(Checkpoints(tmp_path, CheckpointConfig()), policy, 1)
    (path / files.SCORE).write_text('{"score": ')
    assert files.read_score(path) is None
    assert "the score of" in caplog.text
    assert files.problem(path, hashes=True) == ""  # nothing that was saved is touched by it
