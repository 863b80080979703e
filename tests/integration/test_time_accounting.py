"""The seconds of a step add up: every one belongs to a phase, and the stalls are told as one number."""

import pytest

from asyncrl.inference import sharing
from asyncrl.trainer import step_times
from tests.support.tiny_policy import write_tiny_model
from tests.support.trainer_run import make_buffer, make_config, rollout_for, start_trainer

PEAK_TFLOPS = 0.5


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """Step lines of a run with everything that takes time in it: a reference, two passes, evaluations, checkpoints."""
    directory = tmp_path_factory.mktemp("run")
    model_dir = write_tiny_model(directory / "model")
    config = make_config(
        directory,
        model_dir,
        algorithm={"kl_coef": 0.1},
        actor={"ppo_epochs": 2},
        eval={"every_versions": 2},
        trainer={"peak_tflops": PEAK_TFLOPS},
    )
    run = start_trainer(config, make_buffer(config), heldout=2)
    with rollout_for(run).running():
        run.go()
    return [values for _, _, values in run.sink.lines if "actor/pg_loss" in values]


def phases(line):
    prefix = "timing_s/phase/"
    return {name.removeprefix(prefix): seconds for name, seconds in line.items() if name.startswith(prefix)}


def test_the_phases_of_a_step_add_up_to_it_and_little_is_left_over(lines):
    """A wait within another, or one that goes on beside the step, would count twice (B203)."""
    assert len(lines) == 4
    for line in lines:
        spent = phases(line)
        assert sum(spent.values()) == pytest.approx(line["timing_s/step"], rel=1e-9)
        assert min(spent.values()) >= 0.0
        assert line["perf/time/accounted_frac"] == pytest.approx(1 - spent["other"] / line["timing_s/step"])
    # Of single steps, which take milliseconds here, a busy machine may make anything.
    assert sum(phases(line)["other"] for line in lines) < 0.5 * sum(line["timing_s/step"] for line in lines)


def test_what_a_step_does_is_told_apart(lines):
    for line in lines:
        assert {"fetch", "batch", "learner", "old_log_prob", "ref", "update_actor"} <= set(phases(line))
        assert "trainer's heartbeat" not in phases(line)
    # Workers begin with the run, so the first batch is waited for; later ones may be there in time.
    assert phases(lines[0])["wait_groups"] > 0
    assert phases(lines[1])["wait_evaluation"] > 0
    assert phases(lines[1]).keys() & {"checkpoint"} or phases(lines[2]).keys() & {"checkpoint"}


def test_the_stall_share_is_the_share_of_the_stalls(lines):
    for line in lines:
        stalled_s = sum(phases(line).get(name, 0.0) for name in step_times.STALLS)
        assert line["perf/stall_share"] == pytest.approx(stalled_s / line["timing_s/step"])
        assert 0.0 < line["perf/stall_share"] < 1.0


def test_the_peak_that_is_said_gives_the_share_of_it_that_is_reached(lines):
    for line in lines:
        assert line["perf/tflops/actor"] > 0
        assert line["perf/mfu/actor"] == pytest.approx(line["perf/tflops/actor"] / PEAK_TFLOPS)
        assert line["perf/hfu/actor"] == line["perf/mfu/actor"], "nothing is recomputed"
        assert "perf/flops/actor" not in line
        assert line["perf/sampled_tokens_per_s"] < line["perf/tokens_per_s"]


def test_the_wait_for_devices_is_named_as_the_one_who_waits_names_it():
    assert step_times.OF_WAIT[sharing.WAIT] == step_times.WAIT_DEVICES
