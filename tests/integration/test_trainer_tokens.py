"""The token ledger after real training loops: every sampled token is trained or masked once, by data source."""

import json
from dataclasses import replace

import pytest

from asyncrl.errors import CheckpointError
from asyncrl.report.length_bias import of_tokens
from asyncrl.trainer.masked import by_source
from tests.support.tiny_policy import write_tiny_model
from tests.support.trainer_run import make_buffer, make_config, rollout_for, start_trainer

ORDERED = {"staleness": {"limit": 0, "order": "ordinal"}}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def of_two_sources(group):
    """Every third group lost the reward of its first answer; even ordinals are of one source, odd ones of another."""
    members = group.trajectories
    if group.ordinal % 3 == 0:
        members = (replace(members[0], reward=None, reward_error="timeout"), *members[1:])
    return replace(group, data_source=("gsm8k", "openai/math")[group.ordinal % 2], trajectories=members)


def fates(buffer):
    audit = buffer.audit()
    assert audit.ok, audit.problems
    assert audit.tokens.problems() == []
    return {key: (spent.trajectories, spent.tokens) for key, spent in audit.tokens.fates.items()}


def masked_by_lines(run):
    """Masked tokens by source, as the metrics of the steps say."""
    total = {}
    for _, _, values in run.sink.lines:
        for source, tokens in by_source(values).items():
            total[source] = total.get(source, 0) + tokens
    return total


def test_what_a_run_sampled_was_trained_masked_or_evaluated(model_dir, tmp_path):
    config = make_config(tmp_path, model_dir, **ORDERED)
    buffer = make_buffer(config)
    run = start_trainer(config, buffer, heldout=3)
    with rollout_for(run, change=of_two_sources).running():
        run.go()
    found, masked = fates(buffer), masked_by_lines(run)
    assert set(masked) == {"gsm8k", "openai/math"}
    assert {source: tokens for (fate, source), (_, tokens) in found.items() if fate == "masked"} == masked
    for source in masked:
        trained = found["trained", source][1]
        response_tokens = sum(
            values[f"response_length/{source}/mean"] * values[f"buffer/num_answers/{source}"]
            for _, _, values in run.sink.lines
            if f"buffer/num_answers/{source}" in values
        )
        assert trained + masked[source] == round(response_tokens)
        assert found["trained", source][0] == 8 * 4, "answers of eight groups of four"
    assert found["evaluated", "toy"][0] == 2 * 3 * 2, "two evaluations of three prompts, two answers each"
    # What workers had begun for the version after the last is held or given back, nothing is without an end.
    ledger = buffer.audit().tokens
    assert ledger.sampled == ledger.held + sum(tokens for _, tokens in found.values())
    assert "nothing selected on length" in of_tokens(ledger)["gsm8k"].verdict()
    the_buffer_was_measured_with_every_checkpoint(run)


def the_buffer_was_measured_with_every_checkpoint(run):
    measured = [(step, values) for step, _, values in run.sink.lines if "perf/buffer/resident_bytes" in values]
    # A checkpoint every other step: the one of step 2 is told by step 3's line, the last one with the last score.
    assert [step for step, _ in measured] == [3, 4]
    for _, values in measured:
        assert values["perf/buffer/resident_bytes"] > 0
        assert values["perf/buffer/denied/window"] > 0, "workers are as far ahead as they may be"
        assert values.keys() >= {"perf/buffer/promised_bytes", "perf/buffer/dead_bytes"}
    # Before a commit nothing is known to be trained or masked: the second checkpoint tells of the first commit.
    assert 0 < measured[-1][1]["perf/buffer/wasted_frac/masked"] < 1


def test_a_failed_checkpoint_masks_no_token_twice(model_dir, tmp_path):
    config = make_config(tmp_path, model_dir, **ORDERED)
    buffer = make_buffer(config)
    run = start_trainer(config, buffer)
    save, calls = run.parts.checkpoints.save, []

    def failing(*args, **parts):
        calls.append(1)
        if len(calls) in (1, 3):
            raise CheckpointError("the disk is full")
        return save(*args, **parts)

    run.parts.checkpoints.save = failing
    with rollout_for(run, change=of_two_sources).running():
        run.go()
    assert len(calls) > 2
    found = fates(buffer)
    assert {source: tokens for (fate, source), (_, tokens) in found.items() if fate == "masked"} == masked_by_lines(run)


class Killed(BaseException):
    """Ends a trainer as suddenly as SIGKILL does: nothing of it catches this."""


def test_a_killed_and_resumed_run_accounts_like_an_uninterrupted_one(model_dir, tmp_path):
    straight_config = make_config(tmp_path / "straight", model_dir, **ORDERED)
    straight = make_buffer(straight_config)
    run = start_trainer(straight_config, straight)
    with rollout_for(run, change=of_two_sources).running():
        run.go()

    config = make_config(tmp_path / "killed", model_dir, **ORDERED)
    buffer = make_buffer(config)
    killed = start_trainer(config, buffer)
    step, done = killed.parts.learner.step, []

    def dying(batch):
        done.append(1)
        if len(done) == 4:
            raise Killed
        return step(batch)

    killed.parts.learner.step = dying
    with rollout_for(killed, change=of_two_sources).running(), pytest.raises(Killed):
        killed.go()
    before = json.loads(json.dumps(buffer.audit().tokens.to_json()))["fates"]
    assert before["masked"], "the checkpoint of step 2 is committed"
    resumed = start_trainer(config, buffer)
    with rollout_for(resumed, change=of_two_sources).running():
        resumed.go(resume=True)
    trained = ("trained", "masked")
    assert {k: v for k, v in fates(buffer).items() if k[0] in trained} == {
        k: v for k, v in fates(straight).items() if k[0] in trained
    }
