"""Versions and waits of a whole trainer: bugs that other projects had where buffer, publishing and metrics meet."""

import threading

import pytest

from asyncrl.metrics.sinks import JsonlSink
from asyncrl.report.lines import read, surviving
from buffer.versions import pack
from tests.support.tiny_policy import write_tiny_model
from tests.support.trainer_run import make_buffer, make_config, rollout_for, start_trainer


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def steps_of(run):
    return [(step, values) for step, _, values in run.sink.lines if "actor/pg_loss" in values]


def test_lag_is_counted_in_published_versions_and_not_in_optimizer_steps(model_dir, tmp_path):
    """B029: four optimizer steps a batch, limit 1: what was sampled one publish ago has lag 1 and is kept."""
    config = make_config(
        tmp_path, model_dir, staleness={"limit": 1}, actor={"ppo_mini_batches": 4}, trainer={"steps": 3}
    )
    buffer = make_buffer(config)
    run = start_trainer(config, buffer)
    with rollout_for(run).running():
        outcome = run.go()
    assert outcome.version == pack(1, 3)
    assert run.parts.policy.optimizer_steps == 12
    lags = {lag for _, values in steps_of(run) for lag in (0, 1, 2, 4) if f"training/off_policy/lag/{lag}" in values}
    assert lags <= {0, 1}
    assert "stale" not in buffer.audit().by_reason


@pytest.mark.parametrize("resumes", [False, True])
def test_a_branch_publishes_its_first_version_before_it_waits_for_groups(model_dir, tmp_path, resumes):
    """B034: policy wait, servers that stand still until the first publish, at the start and at a resume."""
    config = make_config(tmp_path, model_dir, trainer={"steps": 2})
    buffer = make_buffer(config)
    if resumes:
        first = start_trainer(config, buffer)
        with rollout_for(first).running():
            first.go()
        config = make_config(tmp_path, model_dir, trainer={"steps": 4})
    run, order = start_trainer(config, buffer), []
    publish, lease = run.parts.publisher.publish, buffer.lease

    def publishing(version, *staged):
        order.append(("publish", version))
        return publish(version, *staged)

    def leasing(*arguments, **named):
        order.append(("lease", arguments[1]))
        return lease(*arguments, **named)

    run.parts.publisher.publish, buffer.lease = publishing, leasing
    with rollout_for(run).running():  # it starts a group only on a version that the log has
        assert run.go(resume=resumes).reason == "finished"
    assert order[0] == ("publish", pack(2, 2) if resumes else pack(1, 0))
    assert order[1] == ("lease", 2 if resumes else 0)


def test_publishing_waits_for_no_rollout(model_dir, tmp_path):
    """B040: one group is never finished; versions are published beside it as if it were not there."""
    config = make_config(tmp_path, model_dir, staleness={"policy": "drop"}, trainer={"steps": 2})
    buffer = make_buffer(config)
    run = start_trainer(config, buffer)
    held = []
    take_over = buffer.recover

    def recovering(*arguments, **named):
        branch = take_over(*arguments, **named)
        held.append(buffer.reserve("slowest").ordinal)
        return branch

    buffer.recover = recovering
    with rollout_for(run).running():
        outcome = run.go()
    assert (outcome.reason, run.parts.log.head().version) == ("finished", pack(1, 2))
    assert buffer.counts()["consumed"] == 8
    assert [(claim.ordinal, claim.worker) for claim in buffer.status().claims][:1] == [(held[0], "slowest")]


def test_the_metrics_of_a_resumed_run_have_one_row_a_step_and_the_version_that_it_made(model_dir, tmp_path):
    """B197, B198, B200: steps that are written again carry a higher branch; all of a step is one row; its version is
    that of after the step."""
    config = make_config(tmp_path, model_dir, trainer={"steps": 5})
    buffer = make_buffer(config)
    stop = threading.Event()
    for resume in (False, True):
        run = start_trainer(config, buffer)
        sink = JsonlSink(tmp_path / "metrics.jsonl")
        run.parts.sinks.append(sink)
        step, done = run.parts.learner.step, []

        def dying(batch, step=step, done=done, dies=not resume):
            done.append(1)
            if dies and len(done) == 4:
                raise Killed
            return step(batch)

        run.parts.learner.step = dying
        with rollout_for(run).running():
            if resume:
                run.go(resume=True, stop=stop)
            else:
                with pytest.raises(Killed):
                    run.go(stop=stop)
        sink.close()
    every = [line for line in read(tmp_path) if line.is_training]
    assert [(line.step, line.branch) for line in every] == [(1, 1), (2, 1), (3, 1), (3, 2), (4, 2), (5, 2)]
    lines = [line for line in surviving(every) if line.is_training]
    assert [(line.step, line.branch) for line in lines] == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2)]
    # A version is published beside the step after it, and told in that one's row; a branch begins with its first one.
    assert [line.values.get("weightsync/version") for line in lines] == [
        *(None, pack(1, 1), None, pack(2, 3), pack(2, 4))
    ]
    for line in lines:
        assert line.values["training/version"] == line.step
        assert line.values.keys() >= {"actor/pg_loss", "buffer/lag_max", "timing_s/step", "critic/rewards/mean"}


class Killed(BaseException):
    """Ends a trainer as suddenly as SIGKILL does: nothing of it catches this."""
