"""Every row of the table trains a model: whatever it looks at reaches it, and no cut into micro-batches changes it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from asyncrl.algorithms import ALGORITHMS, resolve
from asyncrl.config import ActorConfig, AlgorithmConfig
from asyncrl.data.policies import GREEDY_BASELINE
from asyncrl.trainer.batch import build
from asyncrl.trainer.policy import Policy
from buffer import Group, Trajectory
from tests.support.tiny_policy import make_groups, make_policy, train

REWARDS = [[1.0, 0.0, 0.5, 0.0], [0.0, 2.0, 0.25, 1.0], [0.5, 0.0, 0.0, 1.5]]

ROWS = sorted(name for name, row in ALGORITHMS.items() if "values_BT" not in row.columns)
"""All but those that need a critic, which is a second model: see test_trainer_critic.py."""


def with_parts_and_a_teacher(trajectory: Trajectory, rng: np.random.Generator) -> Trajectory:
    rows = [
        replace(row, columns={"teacher/big/logprobs": (row.logprobs + rng.normal(0, 0.3)).astype(np.float32)})
        for row in trajectory.rows
    ]
    assert trajectory.reward is not None
    parts = {"right": float(trajectory.reward > 0.4), "style": float(rng.random())}
    return replace(trajectory, rows=tuple(rows), reward_parts=parts)


@pytest.fixture(scope="module")
def groups(model_dir) -> list[Group]:
    """Groups with everything that any estimator asks for: parts of rewards, a teacher, and a greedy answer."""
    rng = np.random.default_rng(0)
    made = []
    for group in make_groups(model_dir, len(REWARDS), 4, seed=3, rewards=REWARDS, noise=0.3):
        members = [with_parts_and_a_teacher(trajectory, rng) for trajectory in group.trajectories]
        greedy = replace(members[0], policy=GREEDY_BASELINE, reward=0.3)
        made.append(replace(group, trajectories=(*members, greedy)))
    return made


@pytest.fixture(scope="module")
def policies(model_dir) -> tuple[Policy, Policy]:
    """The same model twice, with a reference, for one forward pass and for many: no row needs another model."""
    whole, cut = (
        make_policy(model_dir, algorithm_name="online_dpo", micro_batch_tokens=tokens) for tokens in (10_000, 12)
    )
    return whole, cut


def gradient(policy: Policy, groups, name: str, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """Of one weight, after the backward passes of one step; the weights stay."""
    policy.algorithm = resolve(AlgorithmConfig(name=name), ActorConfig(), max_new_tokens=8)
    batch = build(
        groups,
        [[group.ordinal for group in groups]],
        filter_zero_variance=policy.algorithm.filter_zero_variance,
        needs_baseline="baselines_B" in policy.algorithm.columns,
        lag_of=lambda version: 0,
        max_lag=8,
    )
    found = []

    def keep(tally, *, reports):
        found.append(policy.parameters()[1].grad.clone())
        policy.optimizer.discard()

    monkeypatch.setattr(policy.optimizer, "step", keep)
    torch.manual_seed(0)  # of what a selection draws
    train(policy, batch)
    (grad,) = found
    return grad


@pytest.mark.parametrize("name", ROWS)
def test_a_step_has_a_gradient_that_no_cut_into_micro_batches_changes(policies, groups, name, monkeypatch) -> None:
    whole, cut = (gradient(policy, groups, name, monkeypatch) for policy in policies)
    assert whole.isfinite().all()
    assert whole.abs().max() > 0
    torch.testing.assert_close(cut, whole, rtol=1e-3, atol=1e-5 * float(whole.abs().max()))
