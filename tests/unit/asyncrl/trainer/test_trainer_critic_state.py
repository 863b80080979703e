"""A critic in a checkpoint: training goes on bit for bit, and one that is missing is an error."""

import pytest
import torch

from asyncrl.config import CheckpointConfig
from asyncrl.errors import CheckpointError
from asyncrl.trainer.checkpoint import Checkpoints
from asyncrl.trainer.checkpoint_files import CheckpointName
from asyncrl.trainer.parallel import OneRank
from tests.support.tiny_critic import make_learner
from tests.support.tiny_policy import make_batch, make_groups, write_tiny_model


@pytest.fixture
def store(tmp_path):
    return Checkpoints(tmp_path / "checkpoints", CheckpointConfig())


def save(store, learner, **left_out):
    state = {"optimizer_steps": learner.policy.optimizer_steps, **learner.state()}
    store.save(CheckpointName(1, 2, 2), learner.policy, state, OneRank(), **{"critic": learner.critic, **left_out})


def all_weights(learner):
    return {**learner.policy.named_parameters(), **learner.critic.named_parameters()}


def test_training_goes_on_after_a_checkpoint_as_if_never_interrupted(model_dir, store):
    batches = [make_groups(model_dir, 2, 3, seed=seed) for seed in range(4)]
    straight = make_learner(model_dir, steps_before_policy=1, lr_decay="linear")
    for groups in batches[:2]:
        straight.step(make_batch(straight.policy, groups))
    save(store, straight)

    resumed = make_learner(model_dir, steps_before_policy=1, lr_decay="linear")
    saved = store.newest()
    store.load(saved, resumed.policy, critic=resumed.critic)
    resumed.restore(saved.state)
    assert (resumed.critic.optimizer.steps, resumed.critic.num_batches, resumed.critic.is_ahead) == (2, 2, False)
    for groups in batches[2:]:
        lines = [learner.step(make_batch(learner.policy, groups)).values() for learner in (straight, resumed)]
        assert lines[0] == lines[1]
    for (name, one), (_, other) in zip(all_weights(straight).items(), all_weights(resumed).items(), strict=True):
        assert torch.equal(one, other), name


def test_a_checkpoint_without_a_critic_is_refused_for_a_run_with_one(model_dir, store):
    learner = make_learner(model_dir)
    save(store, learner, critic=None)
    with pytest.raises(CheckpointError, match=r"holds no critic.*start a new run from its exported model"):
        store.load(store.newest(), learner.policy, critic=learner.critic)


def test_a_critic_of_another_model_is_refused(model_dir, store, tmp_path):
    learner = make_learner(model_dir)
    save(store, learner)
    other = make_learner(write_tiny_model(tmp_path / "other"))
    other.critic.model.head.register_parameter("extra", torch.nn.Parameter(torch.zeros(1)))
    with pytest.raises(CheckpointError, match=r"head\.extra is only in the model"):
        store.load(store.newest(), other.policy, critic=other.critic)


def test_a_run_without_a_critic_takes_the_policy_of_a_checkpoint_with_one(model_dir, store):
    learner = make_learner(model_dir)
    learner.step(make_batch(learner.policy, make_groups(model_dir, 2, 2)))
    save(store, learner)
    other = make_learner(model_dir)
    store.load(store.newest(), other.policy)
    for name, parameter in learner.policy.named_parameters().items():
        assert torch.equal(parameter, other.policy.named_parameters()[name]), name
