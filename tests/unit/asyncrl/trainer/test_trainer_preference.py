"""Preference algorithms in the trainer: a step on pairs is a step of the optimizer on the plain pair loss."""

import pytest
import torch

from asyncrl.algorithms import ALGORITHMS
from asyncrl.algorithms.preference import pair_loss
from asyncrl.trainer.micro_batch import micro_batches
from asyncrl.trainer.start import StartOfStep
from asyncrl.trainer.tally import Tally
from tests.support.tiny_policy import make_batch, make_groups, make_policy, train

REWARDS = [[1.0, 0.0, 0.5], [0.0, 0.25, 1.0], [1.0, 1.0, 1.0]]
PAIRS = [(0, 1), (5, 3)]
BETA = 0.1
NAMES = ("online_dpo", "spin", "sppo")


@pytest.fixture(scope="module")
def groups(model_dir):
    return make_groups(model_dir, 3, 3, seed=6, rewards=REWARDS, noise=0.5)


def plain_step(policy, batch, reference_N):
    """DPO as it is written down: row sums of one forward pass, autograd, the optimizer."""
    rows = batch.rows_by_mini_batch[0]
    (micro,) = micro_batches(batch, rows, 10**6, torch.device("cpu"), is_packed=policy.model.is_packed)
    outputs = policy.model.outputs(micro, temperature=1.0, entropy_has_gradient=False)
    index_N = torch.from_numpy(micro.index_N)
    logprobs_N = torch.zeros(batch.num_trained).index_copy(0, index_N, outputs.logprobs_N)
    slices = [slice(*batch.starts_R[r : r + 2]) for r in range(len(batch.rows))]
    policy_J, reference_J = (
        torch.stack([values[row].double().sum() for row in slices]) for values in (logprobs_N, reference_N)
    )
    chosen, rejected = (list(side) for side in zip(*PAIRS, strict=True))
    sides = (policy_J[chosen], policy_J[rejected], reference_J[chosen], reference_J[rejected])
    pair_loss(*sides, kind="sigmoid", beta=BETA).losses_P.mean().backward()
    policy.optimizer.step(Tally(), reports=True)


@pytest.mark.parametrize("name", ["online_dpo", "spin"])
def test_two_steps_are_two_of_the_optimizer_on_the_plain_loss(model_dir, groups, name):
    settings = {"algorithm_name": name, "micro_batch_tokens": 16, "grad_clip": 1e6}
    policy, plain = make_policy(model_dir, **settings), make_policy(model_dir, **settings)
    batch = make_batch(policy, groups)
    reference_N = torch.from_numpy(batch.sampler_N)
    if name == "online_dpo":
        reference_N = StartOfStep(batch, policy).reference_N.clone()
    for _ in range(2):  # in the second one the policy has left its reference
        train(policy, batch)
        plain_step(plain, batch, reference_N)
    for (key, got), want in zip(policy.named_parameters().items(), plain.parameters(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}")
    moved = zip(policy.parameters(), make_policy(model_dir).parameters(), strict=True)
    assert any(not torch.allclose(got, before, atol=1e-3) for got, before in moved)


@pytest.mark.parametrize("name", NAMES)
def test_micro_batches_change_nothing(model_dir, groups, name):
    whole, split = (make_policy(model_dir, algorithm_name=name, micro_batch_tokens=most) for most in (10**6, 8))
    values, shared = (train(policy, make_batch(policy, groups)).values() for policy in (whole, split))
    for got, want in zip(split.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    for metric in ("pref/accuracy", "pref/margin", "pref/tie_frac", "pref/chosen_reward", "pref/rejected_reward"):
        assert shared[metric] == pytest.approx(values[metric], rel=1e-5, abs=1e-6), metric
    assert values["pref/tie_frac"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("name", NAMES)
def test_steps_on_the_same_answers_make_the_better_ones_likelier(model_dir, groups, name):
    policy = make_policy(model_dir, algorithm_name=name, lr=3e-3)
    batch = make_batch(policy, groups)
    first, *_, last = [train(policy, batch).values() for _ in range(8)]
    assert last["pref/accuracy"] == 1.0
    assert last["pref/margin"] > first["pref/margin"]
    assert ALGORITHMS[name].one_update_a_step
