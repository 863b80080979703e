"""The training loop with every real part of one rank: trains, publishes, saves, resumes, and loses nothing."""

import json
import shutil
import threading

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from asyncrl.errors import CheckpointError, FencedOut, WaitTimeout
from asyncrl.trainer.loop import LedgerBehind
from buffer.versions import pack
from tests.support.tiny_policy import write_tiny_model
from tests.support.trainer_run import make_buffer, make_config, rollout_for, start_trainer
from weightsync.digest import digest_of_model_dir
from weightsync.manifest import Manifest


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def audit_holds(buffer):
    audit = buffer.audit()
    assert audit.ok, audit.problems
    return buffer.counts()


def test_a_run_trains_publishes_saves_evaluates_and_exports(model_dir, tmp_path):
    config = make_config(tmp_path, model_dir)
    run = start_trainer(config, make_buffer(config), heldout=6)
    with rollout_for(run).running():
        outcome = run.go()
    assert (outcome.reason, outcome.step, outcome.version) == ("finished", 4, pack(1, 4))
    assert set(outcome.facts) >= {"heldout_before", "heldout_after", "steps", "versions"}

    steps = [(step, values) for step, _, values in run.sink.lines if "actor/pg_loss" in values]
    assert [step for step, _ in steps] == [1, 2, 3, 4]
    assert all(values["buffer/lag_max"] <= config.plan.limit for _, values in steps)
    sent = [values for _, _, values in run.sink.lines if values.get("weightsync/num_bytes")]
    assert [values["weightsync/version"] for values in sent] == [pack(1, number) for number in range(1, 5)]
    scored = [values for _, _, values in run.sink.lines if "val-core/toy/reward/mean@2" in values]
    assert len(scored) == 2
    assert scored[0]["val-core/toy/reward/mean@2"] == scored[0]["val/test_score/toy"] == outcome.facts["heldout_before"]

    counts = audit_holds(run.parts.buffer)
    assert counts["consumed"] == 16
    assert counts["leased"] == 0
    samples = [json.loads(line) for line in (tmp_path / "samples" / "before.jsonl").read_text().splitlines()]
    assert [sample["prompt"] for sample in samples] == [f"prompt {i}" for i in range(4)]
    assert (tmp_path / "samples" / "after.jsonl").exists()

    head = run.parts.log.head()
    assert head.version == pack(1, 4)
    manifest = Manifest.from_model_dir(tmp_path / "export", "bfloat16")
    assert digest_of_model_dir(tmp_path / "export", manifest) == head.digest
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "export").dtype == torch.bfloat16


def test_the_first_version_of_a_branch_costs_no_bytes(model_dir, tmp_path):
    config = make_config(tmp_path, model_dir, trainer={"steps": 1})
    run = start_trainer(config, make_buffer(config))
    with rollout_for(run).running():
        run.go()
    first = next(record for record in run.parts.log.records() if record.version == pack(1, 0))
    assert first.delta is not None
    assert first.delta.parts == ()
    assert first.digest == run.parts.log.digest_of(pack(0, 0))


def test_limit_zero_in_order_gives_the_same_numbers_in_every_mode(model_dir, tmp_path):
    lines = []
    for mode in ("sync", "separate_async"):
        staleness = {"limit": 0, "order": "ordinal"}
        config = make_config(tmp_path / mode, model_dir, mode=mode, staleness=staleness)
        run = start_trainer(config, make_buffer(config), heldout=3)
        with rollout_for(run).running():
            run.go()
        lines.append(run.sink.reproducible())
    assert lines[0] == lines[1]


def test_in_order_every_batch_has_the_same_members_however_late_some_of_them_come(model_dir, tmp_path):
    """Asynchronous, with a worker that is slow: 4 groups a step, in the order of their prompts."""
    config = make_config(tmp_path, model_dir, staleness={"limit": 2, "order": "ordinal"})
    run = start_trainer(config, make_buffer(config))
    learner, batches, slow = run.parts.learner, [], threading.Event()
    step = learner.step

    def recorded(batch):
        batches.append([group.ordinal for group in batch.groups])
        return step(batch)

    def late(group):
        slow.wait(0.1)
        return group

    learner.step = recorded
    with rollout_for(run).running(), rollout_for(run, change=late).running() as second:
        run.go()
    assert second.put, "the slow one came too late for all of it"
    assert batches == [list(range(4 * number, 4 * number + 4)) for number in range(4)]


def test_a_model_that_mixes_dtypes_and_has_more_than_is_trained_is_published_as_it_is_stored(model_dir, tmp_path):
    """A norm in float32 beside bfloat16, and a head that the trainer never builds: neither is rounded, nor left out."""
    mixed = shutil.copytree(model_dir, tmp_path / "mixed")
    weights = load_file(mixed / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"].float() + 1e-5  # no bfloat16
    weights["mtp.bias"] = torch.linspace(-1, 1, 7)
    save_file(weights, mixed / "model.safetensors", {"format": "pt"})
    config = make_config(tmp_path / "run", mixed, trainer={"steps": 2})
    run = start_trainer(config, make_buffer(config))
    with rollout_for(run).running():
        run.go()
    manifest, exported = Manifest.from_model_dir(mixed, "bfloat16"), tmp_path / "run" / "export"
    head = run.parts.log.head()
    assert head.num_changed > 0
    assert digest_of_model_dir(exported, manifest) == head.digest
    trained = load_file(exported / "model.safetensors")
    assert torch.equal(trained["model.norm.weight"], run.parts.policy.named_parameters()["model.norm.weight"].detach())
    assert torch.equal(trained["mtp.bias"], weights["mtp.bias"])


@pytest.mark.parametrize("steps_per_version", [1, 3, 4])
def test_versions_follow_steps_and_the_last_one_is_published(model_dir, tmp_path, steps_per_version):
    """However many steps a version has (B176)."""
    config = make_config(tmp_path, model_dir, schedule={"groups_per_step": 2, "steps_per_version": steps_per_version})
    run = start_trainer(config, make_buffer(config))
    with rollout_for(run).running():
        outcome = run.go()
    versions = -(-4 // steps_per_version)
    assert outcome.version == run.parts.log.head().version == pack(1, versions)


def weights(run):
    return {name: parameter.detach().clone() for name, parameter in run.parts.policy.named_parameters().items()}


def test_a_killed_and_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(model_dir, tmp_path):
    staleness = {"limit": 0, "order": "ordinal"}
    straight_config = make_config(tmp_path / "straight", model_dir, staleness=staleness, trainer={"steps": 6})
    straight = start_trainer(straight_config, make_buffer(straight_config))
    with rollout_for(straight).running():
        straight.go()

    config = make_config(tmp_path / "killed", model_dir, staleness=staleness, trainer={"steps": 6})
    buffer = make_buffer(config)
    killed = start_trainer(config, buffer)
    die_after_steps(killed, 3)
    with rollout_for(killed).running(), pytest.raises(Killed):
        killed.go()
    resumed = start_trainer(config, buffer)
    with rollout_for(resumed).running():
        outcome = resumed.go(resume=True)

    assert outcome.version == pack(2, 6)
    assert [step for step, branch, values in resumed.sink.lines if "actor/pg_loss" in values] == [3, 4, 5, 6]
    counts = audit_holds(buffer)
    assert counts["consumed"] == 24
    for name, value in weights(straight).items():
        assert torch.equal(value, weights(resumed)[name]), name


class Killed(BaseException):
    """Ends a trainer as suddenly as SIGKILL does: nothing of it catches this."""


def die_after_steps(run, steps):
    learner = run.parts.learner
    step, done = learner.step, []

    def dying(batch):
        tally = step(batch)
        done.append(1)
        if len(done) == steps:
            raise Killed
        return tally

    learner.step = dying


@pytest.mark.parametrize("moment", ["before the rename", "after the rename"])
def test_dying_around_a_checkpoint_trains_every_ordinal_once(model_dir, tmp_path, moment):
    config = make_config(tmp_path, model_dir)
    buffer = make_buffer(config)
    killed = start_trainer(config, buffer)
    checkpoints = killed.parts.checkpoints
    save = checkpoints.save

    def die():
        raise Killed

    def dying(*args, **parts):
        if moment == "after the rename":  # and before the commit
            save(*args, **{**parts, "then": die})
        die()

    checkpoints.save = dying
    with rollout_for(killed).running(), pytest.raises(Killed):
        killed.go()
    resumed = start_trainer(config, buffer)
    with rollout_for(resumed).running():
        resumed.go(resume=True)
    first = 3 if moment == "after the rename" else 1
    assert [step for step, _, values in resumed.sink.lines if "actor/pg_loss" in values] == list(range(first, 5))
    assert audit_holds(buffer)["consumed"] == 16


def test_a_stop_saves_and_leaves_and_a_resume_goes_on(model_dir, tmp_path):
    config = make_config(tmp_path, model_dir, trainer={"steps": 5})
    buffer, stop = make_buffer(config), threading.Event()
    run = start_trainer(config, buffer)
    stop_after_steps(run, 3, stop)
    with rollout_for(run).running():
        outcome = run.go(stop=stop)
    assert (outcome.reason, outcome.step) == ("stopped", 3)
    assert audit_holds(buffer)["leased"] == 0
    assert not (tmp_path / "export").exists()
    resumed = start_trainer(config, buffer)
    with rollout_for(resumed).running():
        assert resumed.go(resume=True).reason == "finished"
    assert audit_holds(buffer)["consumed"] == 20


def stop_after_steps(run, steps, stop):
    learner = run.parts.learner
    step, done = learner.step, []

    def counted(batch):
        done.append(1)
        if len(done) == steps:
            stop.set()
        return step(batch)

    learner.step = counted


def test_the_stop_mark_of_the_run_stops_it_too(model_dir, tmp_path):
    config = make_config(tmp_path, model_dir, trainer={"steps": 50})
    run = start_trainer(config, make_buffer(config))
    learner = run.parts.learner
    step = learner.step

    def stopping(batch):
        run.parts.buffer.stop()
        return step(batch)

    learner.step = stopping
    with rollout_for(run).running():
        assert run.go().reason == "stopped"


def test_waiting_too_long_saves_what_was_trained_and_says_what_for(model_dir, tmp_path):
    config = make_config(tmp_path, model_dir, trainer={"lease_wait_s": 0.3})
    buffer = make_buffer(config)
    run = start_trainer(config, buffer)
    buffer.pause()
    with rollout_for(run).running(), pytest.raises(WaitTimeout) as late:
        run.go()
    assert late.value.exit_code == 75
    assert "trainer waits for fresh groups" in str(late.value)
    assert "need 4 groups" in str(late.value)
    assert "is serve-rollout running?" in str(late.value)


def test_a_full_buffer_makes_the_trainer_save_at_once(model_dir, tmp_path):
    # Room for one version's groups at their largest and little more: what is trained must be let go of.
    config = make_config(
        tmp_path,
        model_dir,
        buffer={"max_group_bytes": 2500, "max_bytes": 10_000},
        trainer={"steps": 6, "checkpoint": {"every_steps": 100}},
        staleness={"limit": 0},
    )
    run = start_trainer(config, make_buffer(config))
    with rollout_for(run).running():
        outcome = run.go()
    assert outcome.reason == "finished"
    assert outcome.facts["checkpoints"] > 1
    assert audit_holds(run.parts.buffer)["consumed"] == 24


def test_a_newer_trainer_fences_the_older_one(model_dir, tmp_path):
    config = make_config(tmp_path, model_dir)
    buffer = make_buffer(config)
    old = start_trainer(config, buffer)
    learner = old.parts.learner
    step = learner.step

    def taken_over(batch):
        buffer.recover("other trainer", None, number=0, limit=2, groups_per_version=4)
        return step(batch)

    learner.step = taken_over
    with rollout_for(old).running(), pytest.raises(FencedOut, match="Another trainer has taken over"):
        old.go()


def test_a_ledger_that_lost_its_tail_ends_the_trainer_which_then_resumes(model_dir, tmp_path):
    config = make_config(tmp_path, model_dir, trainer={"steps": 6})
    buffer = make_buffer(config)
    run = start_trainer(config, buffer)
    learner = run.parts.learner
    step, done = learner.step, []

    def forgetful(batch):
        done.append(1)
        if len(done) == 4:
            buffer._store.drop()  # Redis came back without its data
        return step(batch)

    learner.step = forgetful
    with rollout_for(run).running(), pytest.raises(LedgerBehind, match=r"Start it again with --resume"):
        run.go()
    resumed = start_trainer(config, buffer)
    with rollout_for(resumed).running():
        outcome = resumed.go(resume=True)
    # Branch 2, although the ledger has never heard of branch 1: the checkpoint and the log of versions have.
    assert outcome.version == pack(2, 6)
    assert [step for step, _, values in resumed.sink.lines if "actor/pg_loss" in values] == [3, 4, 5, 6]
    assert audit_holds(buffer)["consumed"] == 24


def test_a_server_without_a_path_gets_an_anchor_while_the_trainer_waits(model_dir, tmp_path):
    config = make_config(tmp_path, model_dir, trainer={"steps": 2})
    buffer = make_buffer(config)
    run = start_trainer(config, buffer)
    log = run.parts.log
    answer, answered = run.parts.publisher.answer_needs, []

    def answering():
        answered.append(answer())
        buffer.resume()
        return answered[-1]

    run.parts.publisher.answer_needs = answering
    buffer.pause()
    log.need("server-1", "it started late and its parts are gone")
    with rollout_for(run).running():
        run.go()
    assert answered == [True]
    assert log.needs() == []


def test_a_damaged_payload_is_made_again_and_the_batch_is_complete(model_dir, tmp_path):
    config = make_config(tmp_path, model_dir)
    buffer = make_buffer(config)
    run = start_trainer(config, buffer)
    damage_first_fetch(run)
    with rollout_for(run).running():
        run.go()
    assert audit_holds(buffer)["consumed"] == 16
    assert buffer.audit().by_reason["corrupt_payload"] == 1


def damage_first_fetch(run):
    buffer = run.parts.buffer
    fetch_each, seen = buffer.fetch_each, []

    def damaged(entries):
        if not seen:
            seen.append(entries[0])
            buffer._payloads.delete([entries[0].key])  # as if its home had lost it
        return fetch_each(entries)

    buffer.fetch_each = damaged


def test_tokens_of_weights_that_nobody_published_are_not_trained_on(model_dir, tmp_path):
    from dataclasses import replace

    def with_foreign_digest(group):
        if group.ordinal != 1:
            return group
        members = tuple(
            replace(t, rows=tuple(replace(r, spans=(replace(r.spans[0], digest=0xBAD),)) for r in t.rows))
            for t in group.trajectories
        )
        return replace(group, trajectories=members)

    config = make_config(tmp_path, model_dir)
    buffer = make_buffer(config)
    run = start_trainer(config, buffer)
    with rollout_for(run, change=with_foreign_digest).running():
        run.go()
    counts = audit_holds(buffer)
    assert (counts["consumed"], counts["filtered"]) == (16, 1)
    assert buffer.audit().by_reason["unknown_weights"] == 1


def test_a_failed_publish_costs_no_step_and_head_catches_up(model_dir, tmp_path):
    from weightsync.errors import PublishFailed

    config = make_config(tmp_path, model_dir, staleness={"limit": 2})
    run = start_trainer(config, make_buffer(config))
    publish, calls = run.parts.publisher.publish, []

    def failing(version, *staged):
        calls.append(version)
        if version in (pack(1, 1), pack(1, 2)):
            raise PublishFailed("the transport is full")
        return publish(version, *staged)

    run.parts.publisher.publish = failing
    with rollout_for(run).running():
        outcome = run.go()
    assert (outcome.step, outcome.facts["publish_failures"]) == (4, 2.0)
    assert run.parts.log.head().version == pack(1, 4)
    told = [(step, v["weightsync/failed"]) for step, _, v in run.sink.lines if "weightsync/failed" in v]
    # Of the first version before step 1, of each one in the row of the step beside it, of the last one at the end.
    assert told == [(0, 0.0), (2, 1.0), (3, 1.0), (4, 0.0), (4, 0.0)]


def test_checkpoints_may_fail_twice_in_a_row_but_not_three_times(model_dir, tmp_path):
    config = make_config(tmp_path, model_dir, trainer={"steps": 8})
    run = start_trainer(config, make_buffer(config))
    save, failures = run.parts.checkpoints.save, []

    def failing(*args, **parts):
        failures.append(1)
        if len(failures) in (1, 2, 4, 5, 6):
            raise CheckpointError("the disk is full")
        return save(*args, **parts)

    run.parts.checkpoints.save = failing
    with rollout_for(run).running(), pytest.raises(CheckpointError, match="the disk is full"):
        run.go()
    # Failed after steps 2 and 3, written after 4; failed after 6, 7 and 8.
    assert [row["step"] for row in run.parts.checkpoints.describe(verify=True)] == ["4"]


def test_groups_without_a_difference_in_reward_are_closed_as_trained(model_dir, tmp_path):
    from dataclasses import replace

    def all_right(group):
        return replace(group, trajectories=tuple(replace(t, reward=1.0) for t in group.trajectories))

    config = make_config(tmp_path, model_dir, algorithm={"filter_zero_variance": True}, trainer={"steps": 2})
    run = start_trainer(config, make_buffer(config))
    before = weights(run)
    with rollout_for(run, change=all_right).running():
        run.go()
    assert audit_holds(run.parts.buffer)["consumed"] == 8
    assert all(torch.equal(value, before[name]) for name, value in weights(run).items())
    steps = [values for _, _, values in run.sink.lines if "critic/rewards/mean" in values]
    assert [values["training/zero_variance_frac"] for values in steps] == [1.0, 1.0]


def test_without_checkpoints_a_resume_starts_from_the_beginning(model_dir, tmp_path):
    config = make_config(tmp_path, model_dir, trainer={"steps": 1})
    run = start_trainer(config, make_buffer(config))
    with rollout_for(run).running():
        assert run.go(resume=True).step == 1
