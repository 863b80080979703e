"""Evaluation between steps: beside training where a server can be kept at the version, else training waits for it."""

import json
import threading

import pytest

from asyncrl.trainer import held_out
from buffer.versions import pack
from tests.support.tiny_policy import write_tiny_model
from tests.support.trainer_run import make_buffer, make_config, rollout_for, start_trainer, with_servers
from weightsync.errors import LogLost
from weightsync.log.base import Pin

MEAN = "val-core/toy/reward/mean@2"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def not_kept(ledger):
    """Plays all but evaluations beside training."""
    return ledger.evaluates is None or ledger.evaluates.server is None


def scored(run):
    return [(step, values) for step, _, values in run.sink.lines if MEAN in values]


def steps_before(run, line):
    """Steps that had been written when the line of an evaluation was."""
    before = run.sink.lines[: [values is line for _, _, values in run.sink.lines].index(True)]
    return [step for step, _, values in before if "actor/pg_loss" in values]


def test_training_goes_on_while_a_kept_server_plays_and_the_numbers_are_those_of_the_evaluated_version(
    model_dir, tmp_path
):
    """The evaluation of version 2 gets no answers before step 5 is trained; that of 4 is left out meanwhile."""
    config = make_config(
        tmp_path,
        model_dir,
        trainer={"steps": 7, "target_score": 1e9},
        eval={"every_versions": 2},
    )
    run = start_trainer(config, make_buffer(config), heldout=3)
    with_servers(run.parts.log, "server-0", "server-1")
    log, learner, go_on, pins = run.parts.log, run.parts.learner, threading.Event(), []
    step = learner.step

    def counted(batch):
        done = sum("actor/pg_loss" in values for _, _, values in run.sink.lines)
        pins.append(log.pin())
        if done == 5:
            go_on.set()
            for thread in threading.enumerate():
                if thread.name == "evaluation":
                    thread.join(20.0)
        return step(batch)

    learner.step = counted

    def plays(ledger):
        kept = ledger.evaluates
        return kept is None or kept.server is None or kept.version != pack(1, 2) or go_on.is_set()

    with rollout_for(run, plays=plays).running():
        outcome = run.go()

    assert outcome.reason == "finished"
    lines = scored(run)
    assert [step for step, _ in lines] == [0, 2, 6, 7], "before, beside, beside, after"
    (_, second), (_, sixth) = lines[1], lines[2]
    assert (second["val-aux/version"], sixth["val-aux/version"]) == (pack(1, 2), pack(1, 6))
    assert steps_before(run, second) == [1, 2, 3, 4, 5], "written when it was known, under its own step"
    assert all("val-aux/other_version_frac" not in values for _, values in lines)
    assert second["timing_s/evaluation"] > 0
    assert pins[:6] == [None, None, *[Pin("server-1", pack(1, 2))] * 4], "one batch after the other"
    assert log.pin() is None, "it goes back to head"
    assert run.parts.buffer.evaluation() is None
    assert not any(values.get("timing_s/phase/wait_evaluation") for _, _, values in run.sink.lines[2:-1])
    samples = [json.loads(line) for line in (tmp_path / "samples" / "version-1.2.jsonl").read_text().splitlines()]
    assert {sample["version"] for sample in samples} == {"1.2"}


@pytest.mark.parametrize(
    ("servers", "settings"), [(("server-0",), {}), (("server-0", "server-1"), {"pin": False}), ((), {})]
)
def test_with_one_server_or_without_leave_to_pin_training_waits(model_dir, tmp_path, servers, settings):
    config = make_config(
        tmp_path, model_dir, trainer={"steps": 3}, eval={"every_versions": 2, "n": 2, "deadline_s": 20.0, **settings}
    )
    run = start_trainer(config, make_buffer(config), heldout=2)
    with_servers(run.parts.log, *servers)
    with rollout_for(run).running():
        run.go()
    lines = scored(run)
    assert [step for step, _ in lines] == [0, 2, 3]
    assert "actor/pg_loss" in lines[1][1], "it is in the step's own line"
    assert lines[1][1]["val-aux/version"] == pack(1, 2)
    assert lines[1][1]["timing_s/phase/wait_evaluation"] > 0
    assert run.parts.log.pin() is None


def test_an_evaluation_that_is_late_costs_its_numbers_and_lets_its_server_go(model_dir, tmp_path, caplog):
    config = make_config(tmp_path, model_dir, trainer={"steps": 4}, eval={"every_versions": 2, "deadline_s": 0.2})
    run = start_trainer(config, make_buffer(config), heldout=2)
    with_servers(run.parts.log, "server-0", "server-1")

    def plays(ledger):
        return ledger.evaluates is None

    with rollout_for(run, plays=plays).running():
        assert run.go().reason == "finished"
    assert scored(run) == []
    assert "evaluation of version 1.2 is left out: an evaluation goes on beside training" in caplog.text
    assert run.parts.log.pin() is None
    assert run.parts.buffer.evaluation() is None


def test_a_log_that_does_not_answer_is_asked_again_to_let_the_server_go(model_dir, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(held_out, "LET_GO_PAUSES_S", (0.01, 0.01, 0.01))
    config = make_config(tmp_path, model_dir, trainer={"steps": 3}, eval={"every_versions": 2})
    run = start_trainer(config, make_buffer(config), heldout=2)
    log, put_pin, refused = run.parts.log, run.parts.log.put_pin, []
    with_servers(log, "server-0", "server-1")

    def failing(branch, pin):
        if pin is None and len(refused) < 2:
            refused.append(branch)
            raise LogLost("no answer")
        put_pin(branch, pin)

    log.put_pin = failing
    with rollout_for(run).running():
        assert run.go().reason == "finished"
    assert [step for step, _ in scored(run)] == [0, 2, 3]
    assert refused == [1, 1]
    assert log.pin() is None
    assert "server-1 still stays at the evaluated version" in caplog.text


def test_a_stop_ends_the_evaluation_beside_it(model_dir, tmp_path):
    config = make_config(tmp_path, model_dir, trainer={"steps": 50}, eval={"every_versions": 2, "deadline_s": 600.0})
    buffer, stop = make_buffer(config), threading.Event()
    run = start_trainer(config, buffer, heldout=2)
    with_servers(run.parts.log, "server-0", "server-1")
    learner = run.parts.learner
    step, done = learner.step, []

    def stopping(batch):
        done.append(run.parts.log.pin())
        if len(done) == 4:
            stop.set()
        return step(batch)

    learner.step = stopping
    with rollout_for(run, plays=not_kept).running():
        assert run.go(stop=stop).reason == "stopped"
    assert done[3] == Pin("server-1", pack(1, 2))
    assert run.parts.log.pin() is None
    assert buffer.evaluation() is None


def test_a_resumed_trainer_takes_over_from_one_that_died_with_a_server_pinned(model_dir, tmp_path):
    config = make_config(tmp_path, model_dir, trainer={"steps": 5}, eval={"every_versions": 2})
    buffer = make_buffer(config)
    killed = start_trainer(config, buffer, heldout=2)
    with_servers(killed.parts.log, "server-0", "server-1")
    learner = killed.parts.learner
    step = learner.step

    class Killed(BaseException):
        pass

    def dying(batch):
        if killed.parts.log.pin() is not None:
            raise Killed
        return step(batch)

    learner.step = dying
    with rollout_for(killed, plays=not_kept).running(), pytest.raises(Killed):
        killed.go()
    resumed = start_trainer(config, buffer, heldout=2)
    with rollout_for(resumed).running():
        assert resumed.go(resume=True).reason == "finished"
    assert [step for step, _ in scored(resumed)] == [4, 5]
    assert resumed.parts.log.pin() is None
    assert buffer.audit().ok
