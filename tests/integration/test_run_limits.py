"""What ends a run before its steps are done, and the checkpoints that its held-out scores keep."""

import pytest

from asyncrl.trainer import checkpoint_files as files
from asyncrl.trainer.limits import Limits
from buffer import Group
from tests.support.tiny_policy import write_tiny_model
from tests.support.trainer_run import make_buffer, make_config, rollout_for, start_trainer

MEMO: dict[int, Group] = {}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def trained(directory, model_dir, *, buffer=None, resume=False, heldout=0, every=0, on_score=None, **trainer):
    config = make_config(directory, model_dir, trainer={"steps": 5, **trainer}, eval={"every_versions": every})
    run = start_trainer(config, buffer or make_buffer(config), heldout=heldout)
    if on_score is not None:
        run.parts.checkpoints.score = on_score(run.parts.checkpoints.score)
    with rollout_for(run, memo=MEMO).running():
        return run, run.go(resume=resume)


def with_scores(scores):
    """Held-out scores by step instead of those that were measured."""

    def replaced(score):
        return lambda name, measured: score(name, scores[name.step])

    return replaced


def test_every_evaluated_version_has_a_checkpoint_and_the_best_ones_stay(model_dir, tmp_path):
    scores = {0: 0.1, 1: 0.2, 2: 0.9, 3: 0.5, 4: 0.8, 5: 0.3}
    keep = {"every_steps": 100, "keep_last": 1, "keep_best": 2}
    run, outcome = trained(tmp_path, model_dir, heldout=3, every=1, checkpoint=keep, on_score=with_scores(scores))
    assert (outcome.reason, outcome.ended_by) == ("finished", "steps")
    rows = {row["step"]: row["score"] for row in run.parts.checkpoints.describe(verify=True)}
    assert rows == {"5": 0.3, "4": 0.8, "2": 0.9}
    best = run.parts.checkpoints.best()
    assert best.name.step == 2
    assert best.state["step"] == 2
    assert run.parts.buffer.counts()["consumed"] == 20


def test_a_score_at_the_target_ends_the_run_as_finished_with_everything_in_place(model_dir, tmp_path, monkeypatch):
    scores, scored = iter([0.1, 0.9]), Limits.scored  # before, of version 2
    monkeypatch.setattr(Limits, "scored", lambda limits, score: scored(limits, next(scores, score)))
    run, outcome = trained(tmp_path, model_dir, heldout=3, every=2, target_score=0.85)
    # A score that is known while a step is trained counts before the next one.
    assert (outcome.reason, outcome.ended_by) == ("finished", "target_score")
    assert 2 <= outcome.step <= 3
    assert (tmp_path / "export" / "model.safetensors").exists()
    assert run.parts.checkpoints.newest().name.step == outcome.step
    assert run.parts.buffer.audit().ok


def test_hours_count_over_all_starts_and_stand_in_the_checkpoint(model_dir, tmp_path):
    config = make_config(tmp_path, model_dir)
    buffer = make_buffer(config)
    _, outcome = trained(tmp_path, model_dir, buffer=buffer, max_hours=1.0, steps=2)
    assert (outcome.ended_by, outcome.step) == ("steps", 2)
    (_, path) = files.listed(tmp_path / "checkpoints")[-1]
    spent_s = files.read_state(path)["spent_s"]
    assert 0 < spent_s < 600
    _, again = trained(tmp_path, model_dir, buffer=buffer, resume=True, max_hours=spent_s / 3600)
    assert (again.reason, again.ended_by, again.step) == ("finished", "max_hours", 2)
    _, longer = trained(tmp_path, model_dir, buffer=buffer, resume=True, max_hours=1.0)
    assert (longer.ended_by, longer.step) == ("steps", 5)
    assert files.read_state(files.listed(tmp_path / "checkpoints")[-1][1])["spent_s"] > spent_s
    assert buffer.audit().ok
