"""Tokens that a step keeps out of the loss are counted once, by their first reason and by source, however it is cut."""

from dataclasses import replace

import numpy as np
import pytest

from asyncrl.algorithms.tables import ICEPOP
from asyncrl.trainer.masked import by_source, masked_tokens, name_of
from asyncrl.trainer.measure import measure
from asyncrl.trainer.tally import Tally
from tests.support.tiny_policy import make_batch, make_groups, make_policy, train


@pytest.fixture(scope="module")
def groups(model_dir):
    return [replace(g, data_source="ab"[g.ordinal % 2]) for g in make_groups(model_dir, 4, 4, seed=1, noise=1.0)]


def test_a_token_has_the_first_reason_that_applies():
    reasons = {"old": np.array([True, True, False, False]), "unrewarded": np.array([True, False, True, False])}
    counts = masked_tokens(reasons, np.array([0, 0, 1, 1]), ("a", "b"))
    assert counts == {("old", "a"): 2, ("unrewarded", "b"): 1}


def test_sources_with_slashes_are_whole_again():
    values = {name_of("past_limit", "openai/gsm8k"): 3.0, name_of("no_reward", "openai/gsm8k"): 2.0, "actor/lr": 1.0}
    assert by_source(values) == {"openai/gsm8k": 5}


def test_every_sampled_token_is_trained_or_masked(model_dir, groups):
    policy = make_policy(model_dir)
    without = [
        replace(g, trajectories=(replace(g.trajectories[0], reward=None, reward_error="x"), *g.trajectories[1:]))
        for g in groups
    ]
    batch = make_batch(policy, without)
    assert {reason for reason, _ in batch.masked} == {"no_reward"}
    for source in "ab":
        sampled = sum(t.num_sampled for g in without if g.data_source == source for t in g.trajectories)
        trained = int((batch.source_N == batch.sources.index(source)).sum())
        assert trained + sum(n for (_, of), n in batch.masked.items() if of == source) == sampled


@pytest.mark.parametrize("settings", [{}, {"micro_batch_tokens": 12}, {"ppo_mini_batches": 2, "ppo_epochs": 2}])
def test_what_a_correction_rejects_is_counted_once_whatever_the_split(model_dir, groups, settings):
    policy = make_policy(model_dir, algorithm_correction="icepop", algorithm_correction_cap=1.3, **settings)
    batch = make_batch(policy, groups, settings.get("ppo_mini_batches", 1))
    tally = train(policy, batch)
    measure(batch, tally)
    found = by_source(tally.values())
    assert found == rejected_at_the_start(model_dir, groups)
    assert set(found) == {"a", "b"}


def rejected_at_the_start(model_dir, groups):
    """By source, counted token by token: ratios outside the bounds under the weights before the step."""
    policy = make_policy(model_dir)
    batch = make_batch(policy, groups)
    ratios = np.exp(policy.logprobs(batch).numpy() - batch.sampler_N)
    out = (ratios > 1.3) | (ratios < ICEPOP.lower)
    return {source: int(out[batch.source_N == i].sum()) for i, source in enumerate(batch.sources)}


def test_ranks_add_their_counts():
    one, other = Tally(), Tally()
    one.count(name_of("no_reward", "a"), 3)
    other.count(name_of("no_reward", "a"), 4)
    other.count(name_of("past_limit", "b"), 1)
    whole = Tally()
    whole.merge(one.to_bytes())
    whole.merge(other.to_bytes())
    assert by_source(whole.values()) == {"a": 7, "b": 1}
