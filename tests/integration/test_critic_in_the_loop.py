"""A whole trainer with a critic: its line of metrics, its checkpoints, and steps in which the policy waits."""

import pytest

from asyncrl.errors import CheckpointError
from tests.support.tiny_policy import write_tiny_model
from tests.support.trainer_run import make_buffer, make_config, rollout_for, start_trainer


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def config_of(directory, model_dir, algorithm="ppo_gae", steps=4, ahead=1):
    return make_config(
        directory,
        model_dir,
        algorithm={"name": algorithm},
        critic={"steps_before_policy": ahead, "warmup_steps": 10},
        trainer={"steps": steps},
    )


@pytest.fixture(scope="module")
def finished(model_dir, tmp_path_factory):
    """The directory and the lines of a run of four steps that saved at steps 2 and 4."""
    directory = tmp_path_factory.mktemp("run")
    config = config_of(directory, model_dir)
    run = start_trainer(config, make_buffer(config))
    with rollout_for(run).running():
        assert run.go().step == 4
    return directory, [values for _, _, values in run.sink.lines if "critic/vf_loss" in values]


def test_a_step_says_how_the_critic_does(finished):
    _, lines = finished
    assert len(lines) == 4
    for name in (
        "critic/values/mean",
        "critic/returns/mean",
        "critic/vpred_mean",
        "critic/vf_clipfrac",
        "critic/grad_norm",
    ):
        assert all(name in values for values in lines), name
    assert lines[0]["critic/values/mean"] == 0.0
    assert lines[-1]["critic/values/mean"] != 0.0
    assert [values["critic/lr"] for values in lines] == pytest.approx([1e-4, 2e-4, 3e-4, 4e-4])


def test_the_policy_is_not_trained_before_its_turn(finished):
    _, lines = finished
    assert ["actor/lr" in values for values in lines] == [False, True, True, True]


def test_a_resumed_run_goes_on_with_its_critic(model_dir, finished):
    directory, _ = finished
    config = config_of(directory, model_dir, steps=6)
    run = start_trainer(config, make_buffer(config))
    with rollout_for(run).running():
        assert run.go(resume=True).step == 6
    lines = [values for _, _, values in run.sink.lines if "critic/vf_loss" in values]
    assert [values["critic/lr"] for values in lines] == pytest.approx([5e-4, 6e-4])
    assert lines[0]["critic/values/mean"] != 0.0
    assert all("actor/lr" in values for values in lines)


def test_a_checkpoint_of_a_run_without_a_critic_is_refused(model_dir, tmp_path):
    config = config_of(tmp_path, model_dir, algorithm="grpo", steps=2, ahead=0)
    run = start_trainer(config, make_buffer(config))
    with rollout_for(run).running():
        run.go()
    config = config_of(tmp_path, model_dir)
    with pytest.raises(CheckpointError, match=r"holds no critic, but this run's algorithm trains one"):
        start_trainer(config, make_buffer(config)).go(resume=True)
