"""A checkpoint on its way while the next steps train: the bits of its own step, one at a time, its commit after its
rename, its failure told and tried again."""

import threading

import pytest
import torch

from asyncrl.errors import CheckpointError, FencedOut, WaitTimeout
from asyncrl.trainer import checkpoint_files as files
from asyncrl.trainer import saving
from asyncrl.trainer.rank_files import RankFiles
from buffer import Group
from tests.support.tiny_policy import write_tiny_model
from tests.support.trainer_run import make_buffer, make_config, rollout_for, start_trainer

SOON_S = 30.0
MEMO: dict[int, Group] = {}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def trainer(directory, model_dir, *, steps=4, every_steps=2, buffer=None, eval_every=0, sections=None, **checkpoint):
    settings = {"every_steps": every_steps, "keep_last": 10, **checkpoint}
    config = make_config(
        directory,
        model_dir,
        trainer={"steps": steps, "checkpoint": settings},
        eval={"every_versions": eval_every},
        **(sections or {}),
    )
    return start_trainer(config, buffer or make_buffer(config))


def train(run, **arguments):
    with rollout_for(run, memo=MEMO).running():
        return run.go(**arguments)


def after_steps(run, what):
    """Call `what(n)` when step n has changed the weights."""
    step, done = run.parts.learner.step, []

    def stepped(batch):
        tally = step(batch)
        done.append(1)
        what(len(done))
        return tally

    run.parts.learner.step = stepped


def hold(run, step, until, before=lambda: None):
    """Write the checkpoint of `step` only when `until` is set; [True] once it was in time."""
    save, in_time = run.parts.checkpoints.save, []

    def held(name, *args, **parts):
        if name.step == step and parts.get("copied") is not None:
            in_time.append(until.wait(SOON_S))
            before()
        return save(name, *args, **parts)

    run.parts.checkpoints.save = held
    return in_time


def state_of(run):
    policy = run.parts.policy
    return {
        name: (parameter.detach().clone(), *(m.clone() for m in moments_of(policy, parameter).values()))
        for name, parameter in policy.named_parameters().items()
    }


def moments_of(policy, parameter):
    state = policy.optimizer.adamw.state.get(parameter, {})
    return {key: state[key] for key in ("exp_avg", "exp_avg_sq")}


def steps_saved(run):
    return [row["step"] for row in run.parts.checkpoints.describe(verify=True) if row["state"] == "complete"]


def test_a_checkpoint_holds_its_own_step_although_the_next_one_is_trained_meanwhile(model_dir, tmp_path):
    run, third, states = trainer(tmp_path, model_dir), threading.Event(), {}

    def stepped(number):
        states[number] = state_of(run)
        if number == 3:
            third.set()

    after_steps(run, stepped)
    in_time = hold(run, 2, third)
    outcome = train(run)
    assert in_time == [True]  # step 3 did not wait for the checkpoint of step 2
    assert steps_saved(run) == ["4", "2"]
    saved = run.parts.checkpoints.named("2")
    with RankFiles(saved.path) as stored:
        for name, (weights, *moments) in states[2].items():
            found = [stored.read(f"{kind}/{name}") for kind in ("weights", "exp_avg", "exp_avg_sq")]
            assert all(torch.equal(one, other) for one, other in zip([weights, *moments], found, strict=True)), name
            assert not torch.equal(weights, states[3][name][0])
    assert saved.state["optimizer_steps"] == 2
    assert len(ledger_of(saved).closed["consumed"]) + ledger_of(saved).watermark == 8
    assert outcome.facts["checkpoints"] == 2
    told = [values for _, _, values in run.sink.lines if "timing_s/checkpoint_blocked" in values]
    assert told
    assert any(values.get("perf/checkpoint/num_bytes", 0) > 1000 for values in told)


def ledger_of(saved):
    from buffer.lineage import Ledger

    return Ledger.from_json(saved.state["ledger"])


def test_groups_are_closed_after_the_rename_and_only_those_of_the_checkpoint(model_dir, tmp_path):
    run, third, counts = trainer(tmp_path, model_dir), threading.Event(), {}
    buffer, commit = run.parts.buffer, run.parts.buffer.commit
    directory = tmp_path / "checkpoints"

    def committing(branch, ledger):
        counts["there"] = [str(name) for name, _ in files.listed(directory)]
        counts["before"] = buffer.counts()
        commit(branch, ledger)
        counts.setdefault("after", buffer.counts())

    buffer.commit = committing
    after_steps(run, lambda number: third.set() if number == 3 else None)
    hold(run, 2, third, before=lambda: counts.setdefault("held", buffer.counts()))
    train(run)
    assert counts["held"]["consumed"] == 0  # trained, and open as long as nothing holds them
    assert counts["there"][0] == "1.2-step2"
    assert counts["after"]["consumed"] == 8
    assert buffer.audit().ok
    assert buffer.counts()["consumed"] == 16


def test_one_checkpoint_at_a_time_is_on_its_way(model_dir, tmp_path):
    run = trainer(tmp_path, model_dir, steps=3, every_steps=1)
    save, copy = run.parts.checkpoints.save, run.parts.checkpoints.copy
    events, release = [], threading.Event()

    def copying(*args):
        events.append("copy")
        return copy(*args)

    def saving(*args, **parts):
        if len(events) == 1:
            release.wait(0.5)  # long enough for the next one to be due
        path = save(*args, **parts)
        events.append("saved")
        return path

    run.parts.checkpoints.save, run.parts.checkpoints.copy = saving, copying
    train(run)
    assert events == ["copy", "saved"] * 3
    assert steps_saved(run) == ["3", "2", "1"]


def test_a_failure_is_told_at_a_later_step_counted_and_tried_again(model_dir, tmp_path, caplog):
    run = trainer(tmp_path, model_dir, steps=6, every_steps=2)
    save, calls = run.parts.checkpoints.save, []

    def failing(name, *args, **parts):
        calls.append(name.step)
        if len(calls) == 1:
            raise CheckpointError("the disk is full")
        return save(name, *args, **parts)

    run.parts.checkpoints.save = failing
    outcome = train(run)
    assert calls[0] == 2
    assert 3 <= calls[1] <= 5  # not at the next multiple of two only
    assert (outcome.reason, outcome.facts["checkpoint_failures"]) == ("finished", 1.0)
    assert "the disk is full Training goes on; failure 1 of 3" in caplog.text
    told = [step for step, _, values in run.sink.lines if values.get("perf/checkpoint/failures") == 1.0]
    assert told
    assert run.parts.buffer.counts()["consumed"] == 24


@pytest.mark.parametrize("asynchronous", [True, False])
def test_the_third_failure_in_a_row_ends_the_run(model_dir, tmp_path, asynchronous):
    run = trainer(tmp_path, model_dir, steps=50, every_steps=1, asynchronous=asynchronous)

    def failing(*args, **parts):
        raise CheckpointError("the disk is full")

    run.parts.checkpoints.save = failing
    with pytest.raises(CheckpointError, match="the disk is full"):
        train(run)
    assert run.parts.buffer.counts()["consumed"] == 0


def test_a_disk_that_hangs_ends_the_run_at_the_deadline_with_its_name(model_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "LEAVE_S", 0.1)
    run = trainer(tmp_path, model_dir, steps=50, every_steps=1, write_deadline_s=0.4)
    hold(run, 1, threading.Event())
    with pytest.raises(WaitTimeout, match="trainer waits for the checkpoint before") as late:
        train(run)
    assert late.value.exit_code == 75


def test_a_stop_waits_for_the_checkpoint_on_its_way_and_saves_what_came_after(model_dir, tmp_path):
    run, stop, third = trainer(tmp_path, model_dir, steps=50), threading.Event(), threading.Event()

    def stepped(number):
        if number == 3:
            stop.set()
            third.set()

    after_steps(run, stepped)
    hold(run, 2, third)
    outcome = train(run, stop=stop)
    assert (outcome.reason, outcome.ended_by, outcome.step) == ("stopped", "stop", 3)
    assert steps_saved(run) == ["3", "2"]
    counts = run.parts.buffer.counts()
    assert (counts["consumed"], counts["leased"]) == (12, 0)


def test_a_newer_trainer_is_noticed_when_the_commit_is(model_dir, tmp_path):
    config = make_config(tmp_path, model_dir)
    buffer = make_buffer(config)
    run = trainer(tmp_path, model_dir, steps=50, buffer=buffer)
    taken = []

    def take_over():
        if not taken:
            taken.append(buffer.recover("other trainer", None, number=0, limit=2, groups_per_version=4))

    third = threading.Event()
    hold(run, 2, third, before=take_over)
    after_steps(run, lambda number: third.set() if number == 2 else None)
    with pytest.raises(FencedOut, match="Another trainer has taken over"):
        train(run)


def test_a_full_buffer_waits_for_the_checkpoint_on_its_way_which_frees_it(model_dir, tmp_path):
    """Room for one version's groups and little more: nothing new starts before what was trained is let go of."""
    sections = {"buffer": {"max_group_bytes": 2500, "max_bytes": 10_000}, "staleness": {"limit": 0}}
    run = trainer(tmp_path, model_dir, steps=4, every_steps=1, sections=sections)
    save, failed = run.parts.checkpoints.save, []

    def failing(name, *args, **parts):
        if name.step == 2 and not failed:
            failed.append(1)
            raise CheckpointError("the disk is full")
        return save(name, *args, **parts)

    run.parts.checkpoints.save = failing
    outcome = train(run)
    assert (outcome.reason, failed) == ("finished", [1])
    assert run.parts.buffer.audit().ok
    assert run.parts.buffer.counts()["consumed"] == 16


def test_without_asynchronous_no_state_is_copied(model_dir, tmp_path):
    run = trainer(tmp_path, model_dir, asynchronous=False)
    train(run)
    assert steps_saved(run) == ["4", "2"]
    assert run.parts.checkpoints._copy.num_bytes == 0
