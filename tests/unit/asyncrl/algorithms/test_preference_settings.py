"""Advantages that are the gradient of a loss: settings under which they would be that of none are refused by name."""

from typing import Any

import pytest

from asyncrl.algorithms import ALGORITHMS, resolve
from asyncrl.config import ActorConfig, AlgorithmConfig
from asyncrl.errors import ConfigError

NAMES = sorted(name for name, row in ALGORITHMS.items() if row.one_update_a_step)


def test_the_preference_rows_are_the_ones() -> None:
    assert NAMES == ["online_dpo", "spin", "sppo"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("keys", [{"ppo_epochs": 2}, {"ppo_mini_batches": 4}])
def test_a_second_optimizer_step_of_a_batch_is_refused(name: str, keys: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=rf"optimizer steps a batch.*{name!r}.*groups_per_step"):
        resolve(AlgorithmConfig(name=name), ActorConfig.model_validate(keys))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "keys", [{"loss": "ppo_clip"}, {"loss_agg_mode": "token-mean"}, {"correction": "tis"}, {"correction": "icepop"}]
)
def test_another_loss_sum_or_weight_is_refused(name: str, keys: dict[str, Any]) -> None:
    ((key, value),) = keys.items()
    with pytest.raises(ConfigError, match=rf"algorithm.{key} = {value!r} with the advantages of {name!r}"):
        resolve(AlgorithmConfig(name=name, **keys), ActorConfig())


@pytest.mark.parametrize("name", NAMES)
def test_the_estimator_of_another_row_is_refused_and_what_is_its_own_is_not(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"algorithm.name = 'grpo' with the advantages of {name!r}"):
        resolve(AlgorithmConfig(name="grpo", adv_estimator=name), ActorConfig())
    own = {"loss": "reinforce", "loss_agg_mode": "token-sum", "correction": "none", "adv_estimator": name}
    resolved = resolve(AlgorithmConfig.model_validate({"name": name, **own}), ActorConfig())
    assert resolved.columns == ALGORITHMS[name].columns
    assert resolved.measure is ALGORITHMS[name].measure
