"""A step of packed rows is that of padded rows and that of one row at a time: logprobs, values, gradients."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.algorithms import ALGORITHMS
from asyncrl.trainer.micro_batch import micro_batches
from asyncrl.trainer.parallel import OneRank
from asyncrl.trainer.passes import Passes
from asyncrl.trainer.tally import Tally
from buffer import Group, Row, Span, Trajectory
from buffer.versions import pack
from tests.support.tiny_critic import make_critic
from tests.support.tiny_policy import VOCABULARY, gradient_of, make_batch, make_policy

CPU = torch.device("cpu")
WAYS = (True, False)
"""Packed and padded."""
LENGTHS = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=2, max_size=8)
"""(prompt, answer) of each row."""


@pytest.fixture(scope="module")
def policies(model_dir):
    """By whether they pack; in double precision up to the logprobs."""
    found = {}
    for is_packed in WAYS:
        policy = make_policy(model_dir, packing=is_packed, algorithm_kl_coef=0.1, algorithm_entropy_coef=0.01)
        for model in (policy.model, policy._reference):
            model.module.double()
        found[is_packed] = policy
    return found


def make_groups(lengths, seed):
    """One group; random tokens and logprobs, an observation in the middle of some answers, rewards in turn."""
    rng = np.random.default_rng(seed)
    members = []
    for number, (prompt, answer) in enumerate(lengths):
        mask = np.arange(prompt + answer) >= prompt
        mask[prompt + 1 : prompt + 1 + (answer > 4)] = False
        row = Row(
            token_ids=rng.integers(2, VOCABULARY, prompt + answer).astype(np.uint32),
            mask=mask,
            logprobs=np.where(mask, -rng.random(len(mask)) * 4, 0).astype(np.float32),
            spans=(Span(pack(1, 0), 0, int(mask.sum())),),
            num_prompt_tokens=prompt,
        )
        members.append(Trajectory(rows=(row,), reward=float(number % 2)))
    return [Group(ordinal=0, attempt=1, data_source="toy", trajectories=tuple(members))]


def gradient(policy, groups, max_tokens):
    """Of one step with micro-batches of so many tokens."""
    return gradient_of(policy, groups, Passes(policy.ranks, max_tokens, CPU, is_packed=policy.model.is_packed))


@settings(max_examples=10, deadline=None)
@given(lengths=LENGTHS, budget=st.integers(1, 60), seed=st.integers(0, 99), name=st.sampled_from(["grpo", "gspo"]))
def test_any_packing_has_the_gradient_of_padded_rows_and_of_one_row_at_a_time(policies, lengths, budget, seed, name):
    """No mean of micro-batch means (B077), and no divisor that follows the width of a micro-batch (B079)."""
    groups = make_groups(lengths, seed)
    for policy in policies.values():
        policy.algorithm = replace(ALGORITHMS[name], kl_coef=0.1, entropy_coef=0.01)
    alone, metrics = gradient(policies[False], groups, 1)
    for is_packed in WAYS:
        found, same = gradient(policies[is_packed], groups, budget)
        torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-6 * float(alone.abs().max()))
        assert same == pytest.approx(metrics, rel=1e-5, abs=1e-7)


class Busiest(OneRank):
    """A rank among others of which one has two micro-batches more."""

    def largest(self, value):
        return value + 2


@pytest.mark.parametrize("is_packed", WAYS, ids=["packed", "padded"])
def test_passes_without_rows_add_nothing_to_a_step(policies, is_packed, monkeypatch):
    """Ranks that share parameters run as many passes as the busiest."""
    policy, groups = policies[is_packed], make_groups([(4, 8), (3, 5), (2, 9)], seed=4)
    policy.algorithm = replace(ALGORITHMS["grpo"], kl_coef=0.1, entropy_coef=0.01)
    expected, metrics = gradient(policy, groups, 20)
    monkeypatch.setattr(policy, "ranks", Busiest())
    found, same = gradient(policy, groups, 20)
    batch = make_batch(policy, groups)
    assert [len(micro.index_N) for micro in policy._passes.micro_batches(batch, batch.rows_by_mini_batch[0])][-2:] == [
        0,
        0,
    ]
    assert torch.equal(found, expected)
    assert same == metrics


@pytest.mark.parametrize("is_packed", WAYS, ids=["packed", "padded"])
def test_what_stands_beside_a_row_changes_nothing_of_it(policies, is_packed):
    """Padding, or the row before: other tokens there give the same logprobs, bit for bit."""
    policy = policies[is_packed]
    batch = make_batch(policy, make_groups([(4, 8), (3, 5)], seed=1))
    (micro,) = micro_batches(batch, batch.rows_by_mini_batch[0], 1000, CPU, is_packed=is_packed)
    inputs, second_N = micro.inputs, torch.from_numpy(micro.index_N >= batch.starts_R[1])
    assert inputs.rows_R.tolist() == [0, 1]
    ids = inputs.token_ids_RT.clone()
    if is_packed:
        ids[0, : inputs.lengths_R[0]] += 1
    else:
        ids[1, inputs.lengths_R[1] :] += 7
    other = replace(micro, inputs=replace(inputs, token_ids_RT=ids))
    with torch.no_grad():
        before_N, after_N = (
            policy.model.outputs(m, temperature=1.0, entropy_has_gradient=False) for m in (micro, other)
        )
    assert torch.equal(after_N.logprobs_N[second_N], before_N.logprobs_N[second_N])
    assert torch.equal(after_N.logprobs_N[~second_N], before_N.logprobs_N[~second_N]) is not is_packed


def test_a_row_that_is_not_finite_leaves_its_neighbours_in_the_pack_as_they_are(policies):
    policy = policies[True]
    batch = make_batch(policy, make_groups([(2, 6), (2, 5), (2, 4)], seed=2))
    (micro,) = micro_batches(batch, batch.rows_by_mini_batch[0], 1000, CPU, is_packed=True)
    before_N = policy.logprobs(batch)
    places = slice(*micro.inputs.starts_R[1:3])

    def poison(module, args, output):
        output[:, places] = torch.nan
        return output

    embedding = policy.model.module.get_input_embeddings()
    hook = embedding.register_forward_hook(poison)
    try:
        after_N = policy.logprobs(batch)
    finally:
        hook.remove()
    row_N = np.searchsorted(batch.starts_R, np.arange(batch.num_trained), side="right") - 1
    is_poisoned_N = torch.from_numpy(row_N == micro.inputs.rows_R[1])
    assert after_N[is_poisoned_N].isnan().all()
    assert torch.equal(after_N[~is_poisoned_N], before_N[~is_poisoned_N])


def test_values_of_packed_rows_are_those_of_padded_ones_and_so_are_their_gradients(model_dir):
    groups = make_groups([(3, 9), (5, 2), (1, 7), (4, 4)], seed=3)
    batch = make_batch(make_policy(model_dir), groups)
    returns_N = torch.linspace(-1, 1, batch.num_trained)
    found = {}
    for is_packed in WAYS:
        critic = make_critic(model_dir, packing=is_packed, micro_batch_tokens=20, epochs=1)
        assert critic.model.is_packed is is_packed
        with torch.no_grad():
            critic.model.head.weight.fill_(0.1)
        critic.update(batch, returns_N, critic.values(batch), Tally())
        found[is_packed] = critic
    torch.testing.assert_close(found[True].values(batch), found[False].values(batch), rtol=1e-4, atol=1e-5)
