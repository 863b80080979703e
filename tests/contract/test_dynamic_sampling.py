"""Both clusters mean the same by a group without a difference in reward, and by an algorithm that filters it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.algorithms import ALGORITHMS, resolve
from asyncrl.algorithms.rewards import zero_variance
from asyncrl.config import ActorConfig, AlgorithmConfig
from asyncrl.config.dynamic_sampling import FILTERING, ZERO_VARIANCE, filters_zero_variance
from asyncrl.data.policies import GREEDY_BASELINE
from asyncrl.rollout.signal import shared_reward
from asyncrl.trainer import signals
from buffer import Row, Span, Trajectory


def test_the_rollout_clusters_list_is_that_of_the_rows() -> None:
    assert {name for name, row in ALGORITHMS.items() if row.filter_zero_variance} == FILTERING
    assert signals.ZERO_VARIANCE == ZERO_VARIANCE


@pytest.mark.parametrize("asked", [None, True, False])
@pytest.mark.parametrize("name", ["grpo", "dapo"])
def test_both_clusters_read_the_same_from_a_configuration(name: str, asked: bool | None) -> None:
    section = AlgorithmConfig(name=name, filter_zero_variance=asked)
    assert filters_zero_variance(section) == resolve(section, ActorConfig(), max_new_tokens=8).filter_zero_variance


def member(reward: float | None, policy: str = "policy") -> Trajectory:
    ids, mask = np.array([1, 2], dtype=np.uint32), np.array([False, True])
    row = Row(ids, mask, np.array([0, -1], dtype=np.float32), (Span(0, 0, 1),), 1)
    error = None if reward is not None else "it failed"
    return Trajectory(rows=(row,), reward=reward, reward_error=error, policy=policy)


@given(st.lists(st.none() | st.sampled_from([0.0, 0.1, 1.0, 1000.1]), min_size=1, max_size=5))
def test_a_worker_filters_what_the_trainer_would_leave_out(rewards: list[float | None]) -> None:
    members = [member(reward) for reward in rewards]
    found = zero_variance({0: rewards})
    shared = shared_reward(members)
    assert (shared is not None) == bool(found.dropped)
    assert shared is None or found.counts_by_value == {shared: 1}
    # The greedy answer is no member, whatever its reward.
    assert shared_reward([*members, member(0.5, GREEDY_BASELINE)]) == shared
