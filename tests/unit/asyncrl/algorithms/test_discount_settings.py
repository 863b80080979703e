"""gamma and lambda: they reach the estimator, and one that has none refuses them."""

import pytest
import torch

from asyncrl.algorithms import resolve
from asyncrl.algorithms.returns import whitened_gae
from asyncrl.config import ActorConfig, AlgorithmConfig
from asyncrl.errors import ConfigError


def test_gamma_and_lambda_are_those_of_the_advantages() -> None:
    rewards, mask = torch.tensor([1.0, -0.5]), torch.tensor([[True, True, True], [True, True, False]])
    values, groups = torch.tensor([[0.1, 0.4, 0.2], [0.3, -0.2, 0.0]]), torch.tensor([0, 0])
    row = resolve(AlgorithmConfig(name="ppo_gae", gamma=0.9, lam=0.5), ActorConfig())
    expected = whitened_gae(rewards, mask, groups, values_BT=values, gamma=0.9, lam=0.5)
    plain = whitened_gae(rewards, mask, groups, values_BT=values)
    found = row.advantage(rewards, mask, groups, values_BT=values)
    assert torch.equal(found, expected)
    assert not torch.equal(found, plain)


@pytest.mark.parametrize(
    ("key", "name", "others"), [("gamma", "grpo", "reinforce_pp"), ("lam", "reinforce_pp", "ppo_gae")]
)
def test_an_estimator_without_it_refuses_the_key(key: str, name: str, others: str) -> None:
    with pytest.raises(ConfigError, match=rf"algorithm.{key} = 0.5 has no effect.*{name!r}.*{others}"):
        resolve(AlgorithmConfig(name=name, **{key: 0.5}), ActorConfig())
