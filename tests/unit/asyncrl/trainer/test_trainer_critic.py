"""The critic: values of a plain pass before each token, steps that do not depend on the split, and what stops them."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from asyncrl.errors import ConfigError, NumericsError
from asyncrl.trainer import value_model
from asyncrl.trainer.critic import explained_variance
from asyncrl.trainer.model import read_model
from asyncrl.trainer.parallel import OneRank
from asyncrl.trainer.start import StartOfStep
from asyncrl.trainer.tally import Tally
from tests.support.tiny_critic import make_critic, make_learner
from tests.support.tiny_policy import make_batch, make_groups, make_policy


@pytest.fixture(scope="module")
def groups(model_dir):
    return make_groups(model_dir, 4, 4, seed=1)


@pytest.fixture(scope="module")
def batch(model_dir, groups):
    return make_batch(make_policy(model_dir), groups)


def weights(critic):
    return {name: parameter.detach().clone() for name, parameter in critic.named_parameters().items()}


def with_a_head(critic, seed=0):
    """Its head no longer at zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        critic.model.head.weight.copy_(torch.randn(critic.model.head.weight.shape, generator=generator))
        critic.model.head.bias.fill_(0.25)
    return critic


def gradients(critic, batch, returns_N):
    """Of one optimizer step, which is not taken."""
    found = {}

    def keep(tally, *, reports):
        found.update({name: p.grad.clone() for name, p in critic.named_parameters().items() if p.grad is not None})
        critic.optimizer.discard()

    critic.optimizer.step = keep
    critic.update(batch, returns_N, critic.values(batch), Tally())
    return found


def test_every_value_is_zero_before_the_first_step(model_dir, batch):
    values_N = make_critic(model_dir).values(batch)
    assert values_N.shape == (batch.num_trained,)
    assert values_N.dtype == torch.float32
    assert not values_N.any()


def test_values_are_those_of_a_plain_pass_before_each_token(model_dir, batch):
    critic = with_a_head(make_critic(model_dir, micro_batch_tokens=40))
    trunk = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval().model
    expected = []
    for row in batch.rows:
        with torch.no_grad():
            hidden = trunk(input_ids=torch.from_numpy(row.token_ids.astype(np.int64))[None]).last_hidden_state[0]
            values = critic.model.head(hidden)[:, 0]
        expected += [float(values[t - 1]) for t in np.flatnonzero(row.mask)]
    torch.testing.assert_close(critic.values(batch), torch.tensor(expected), atol=1e-5, rtol=1e-5)


def test_gradients_do_not_depend_on_the_split_into_micro_batches(model_dir, batch):
    returns_N = torch.linspace(-1, 1, batch.num_trained)
    whole = gradients(with_a_head(make_critic(model_dir)), batch, returns_N)
    parts = gradients(with_a_head(make_critic(model_dir, micro_batch_tokens=12)), batch, returns_N)
    assert whole.keys() == parts.keys() >= {"head.weight", "head.bias", "trunk.norm.weight"}
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, atol=1e-6, rtol=1e-4, msg=name)


def test_the_gradient_is_that_of_the_mean_squared_error(model_dir, batch):
    critic = with_a_head(make_critic(model_dir, clip=100.0))
    returns_N = torch.linspace(-1, 1, batch.num_trained)
    found = gradients(critic, batch, returns_N)
    errors_N = critic.values(batch) - returns_N
    assert float(found["head.bias"]) == pytest.approx(float(errors_N.mean()), rel=1e-4)


def test_values_come_to_what_the_prompt_foretells(model_dir):
    """Each prompt has its own reward: a critic that sees the prompt can explain all of it."""
    groups = make_groups(model_dir, 4, 4, seed=3, rewards=[[reward] * 4 for reward in (0.0, 0.25, 0.5, 1.0)])
    learner = make_learner(model_dir, lr=1e-2, steps=30, lr_decay="linear")
    batch = make_batch(learner.policy, groups)
    rewards_J = torch.from_numpy(batch.trajectories.rewards_J)
    for _ in range(30):
        tally = Tally()
        learner.critic.learn(StartOfStep(batch, learner.policy, learner.critic), rewards_J, tally)
    values_N = learner.critic.values(batch).double()
    expected_N = np.repeat(batch.trajectories.rewards_J, batch.trajectories.num_sampled_J)
    assert float((values_N - torch.from_numpy(expected_N)).abs().max()) < 0.1
    assert tally.values()["critic/vf_explained_var"] > 0.98
    assert tally.values()["critic/vf_loss"] < 1e-3


def test_what_it_learns_is_the_discounted_sum_after_each_token(model_dir, batch):
    """Lambda 1: whatever was foretold. The reward stands on the last token, so every token of an answer has it."""
    learner, tally = make_learner(model_dir), Tally()
    with_a_head(learner.critic)
    rewards_J = torch.from_numpy(batch.trajectories.rewards_J)
    seen = []
    learner.critic.update = lambda batch, returns_N, old_N, tally: seen.append(returns_N)
    learner.critic.learn(StartOfStep(batch, learner.policy, learner.critic), rewards_J, tally)
    expected_N = np.repeat(batch.trajectories.rewards_J, batch.trajectories.num_sampled_J)
    torch.testing.assert_close(seen[0], torch.from_numpy(expected_N))


def test_a_clip_that_is_too_small_shows(model_dir, batch):
    tally = Tally()
    critic = make_critic(model_dir, clip=1e-4, epochs=2, lr=1e-2)
    critic.update(batch, torch.ones(batch.num_trained), critic.values(batch), tally)
    assert tally.values()["critic/vf_clipfrac"] > 0.25


def test_advantages_are_made_with_the_values_before_the_step(model_dir, batch):
    learner = make_learner(model_dir)
    with_a_head(learner.critic)
    before_N = learner.critic.values(batch)
    values = learner.step(batch).values()
    assert values["critic/values/mean"] == pytest.approx(float(before_N.mean()), rel=1e-4)
    assert values["critic/grad_norm"] > 0
    assert values["critic/lr"] == 3e-3
    assert (learner.critic.values(batch) - before_N).abs().max() > 0


def test_the_policy_waits_for_as_many_steps_as_asked(model_dir, batch):
    learner = make_learner(model_dir, steps_before_policy=2)
    start, moved = [p.detach().clone() for p in learner.policy.parameters()], []
    for _ in range(3):
        tally = learner.step(batch)
        pairs = zip(start, learner.policy.parameters(), strict=True)
        moved.append((any(not torch.equal(a, b) for a, b in pairs), "actor/lr" in tally.values()))
    assert moved == [(False, False), (False, False), (True, True)]
    assert (learner.critic.optimizer.steps, learner.policy.optimizer_steps) == (3, 1)


def test_a_batch_without_trained_tokens_moves_nothing(model_dir):
    critic = make_critic(model_dir)
    nothing = make_batch(make_policy(model_dir), make_groups(model_dir, 1, 2, rewards=[[None, None]]))
    before = weights(critic)
    critic.update(nothing, torch.zeros(0), critic.values(nothing), Tally())
    assert all(torch.equal(before[name], value) for name, value in weights(critic).items())
    assert critic.optimizer.steps == 0


def test_too_many_nonfinite_values_stop_the_run_before_the_optimizer(model_dir, batch):
    critic = make_critic(model_dir)
    with torch.no_grad():
        critic.model.head.bias.fill_(float("nan"))
    with pytest.raises(NumericsError, match=r"NaN or infinite value or return.*lower critic\.lr"):
        critic.update(batch, torch.zeros(batch.num_trained), critic.values(batch), Tally())
    assert critic.optimizer.steps == 0
    assert all(parameter.grad is None for parameter in critic.named_parameters().values())


def test_in_bfloat16_masters_and_head_stay_float32(model_dir, batch):
    full, low = with_a_head(make_critic(model_dir)), with_a_head(make_critic(model_dir, arithmetic="bfloat16"))
    difference_N = full.values(batch) - low.values(batch)
    assert 0 < float(difference_N.abs().max()) < 0.2
    assert low.values(batch).dtype == torch.float32
    assert {parameter.dtype for parameter in low.named_parameters().values()} == {torch.float32}
    low.update(batch, torch.ones(batch.num_trained), low.values(batch), Tally())
    assert low.optimizer.steps == 1


def test_a_directory_without_a_model_is_refused_by_the_name_of_its_key(model_dir, tmp_path):
    with pytest.raises(ConfigError, match=r"critic\.path = .* holds no config\.json"):
        make_critic(model_dir, path=tmp_path)


def test_a_model_that_is_all_head_is_refused(model_dir, monkeypatch):
    def without_trunk(path, **settings) -> PreTrainedModel:
        module = read_model(path, **settings)
        monkeypatch.setattr(type(module), "base_model_prefix", "")
        return module

    monkeypatch.setattr(value_model, "read_model", without_trunk)
    with pytest.raises(ConfigError, match=r"model\.path = .* has no trunk of its own"):
        make_critic(model_dir)


def test_explained_variance_is_one_zero_or_below():
    returns_N = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    assert explained_variance(returns_N, returns_N + 5, OneRank()) == pytest.approx(1.0)
    assert explained_variance(returns_N, torch.zeros_like(returns_N), OneRank()) == pytest.approx(0.0)
    assert explained_variance(returns_N, -returns_N, OneRank()) == pytest.approx(-3.0)
    assert explained_variance(returns_N[:0], returns_N[:0], OneRank()) is None
    assert explained_variance(torch.full((5,), 0.1, dtype=torch.float64), returns_N.repeat(2)[:5], OneRank()) is None
