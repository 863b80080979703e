"""Greedy answers of a step: their rewards are baselines, and nothing else of them is in the batch or its metrics."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from asyncrl.data.policies import GREEDY_BASELINE
from asyncrl.trainer.batch import build
from asyncrl.trainer.columns import COLUMNS
from asyncrl.trainer.masked import by_source
from asyncrl.trainer.measure import measure
from asyncrl.trainer.start import StartOfStep
from asyncrl.trainer.tally import Tally
from tests.support.tiny_policy import advantages_of, make_groups, make_policy, train

REWARDS = [[1.0, 0.0, None], [2.0, 4.0, 3.0], [1.0, 1.0, 0.0]]


@pytest.fixture(scope="module")
def groups(model_dir):
    return make_groups(model_dir, 3, 3, seed=4, rewards=REWARDS)


def with_greedy(group, reward):
    """The group with one more answer: the first one's tokens, as if they had been the likeliest."""
    greedy = replace(
        group.trajectories[0],
        policy=GREEDY_BASELINE,
        reward=reward,
        reward_error="it failed" if reward is None else None,
    )
    return replace(group, trajectories=(*group.trajectories, greedy)), greedy.num_sampled


def built(groups, **changes):
    settings = {"filter_zero_variance": False, "lag_of": lambda version: 0, "max_lag": 8, **changes}
    return build(groups, [[group.ordinal for group in groups]], **settings)


def values_of(batch):
    tally = Tally()
    measure(batch, tally)
    return tally.values()


def test_a_batch_is_the_same_with_greedy_answers_but_for_what_is_masked(groups):
    greedy = [with_greedy(group, 0.25 * i) for i, group in enumerate(groups)]
    plain, batch = built(groups), built([group for group, _ in greedy])
    for name in ("labels_N", "positions_N", "sampler_N", "starts_R", "trained_M"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(batch, name))
    assert batch.groups == plain.groups
    assert batch.masked == {**plain.masked, ("baseline", "toy"): sum(tokens for _, tokens in greedy)}
    assert batch.trajectories.baselines_J.tolist() == [0.0] * 3 + [0.25] * 3 + [0.5] * 3
    assert np.isnan(plain.trajectories.baselines_J).all()


def test_metrics_know_them_by_their_own_names_alone(groups):
    greedy = [with_greedy(group, 100.0) for group in groups]
    plain, values = values_of(built(groups)), values_of(built([group for group, _ in greedy]))
    tokens = sum(tokens for _, tokens in greedy)
    new = {f"critic/baseline/{kind}": 100.0 for kind in ("mean", "max", "min")}
    assert values == plain | new | {"training/masked_tokens/baseline/toy": tokens}
    assert by_source(values)["toy"] == by_source(plain)["toy"] + tokens


def test_a_group_without_a_greedy_reward_is_masked_where_it_is_needed(groups):
    some = [with_greedy(groups[0], None)[0], with_greedy(groups[1], 3.0)[0], groups[2]]
    assert built(some).num_trained == built(groups).num_trained
    batch = built(some, needs_baseline=True)
    lost = sum(t.num_sampled for t in (*groups[0].trajectories[:2], *groups[2].trajectories))
    assert batch.masked["no_baseline", "toy"] == lost, "the trajectory without a reward has its own reason"
    assert batch.num_trained == sum(t.num_sampled for t in groups[1].trajectories)


def test_the_advantages_of_remax_are_measured_from_the_greedy_reward(model_dir, groups):
    policy = make_policy(model_dir, algorithm_name="remax")
    batch = built([with_greedy(group, 2.5)[0] for group in groups[1:]], needs_baseline=True)
    start = StartOfStep(batch, policy)
    assert torch.equal(COLUMNS["baselines_B"].make(start, policy.algorithm), torch.full((6,), 2.5).double())
    members = [t for group in groups[1:] for t in group.trajectories]
    expected = np.repeat([t.reward - 2.5 for t in members], [t.num_sampled for t in members])
    np.testing.assert_allclose(advantages_of(policy, batch), expected)
    assert train(policy, batch).values()["critic/rewards/mean"] == pytest.approx(np.mean([t.reward for t in members]))
