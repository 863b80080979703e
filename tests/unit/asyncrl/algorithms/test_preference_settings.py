"""Advantages that are the gradient of a loss: settings under which they would be that of none are refused by name."""

from typing import Any

import pytest
import torch

from asyncrl.algorithms import ALGORITHMS, resolve
from asyncrl.algorithms.measures import finish
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


def test_the_keys_of_a_pair_loss_take_effect_and_the_measures_follow_beta() -> None:
    keys = {"preference_loss": "ipo", "preference_beta": 0.5}
    resolved = resolve(AlgorithmConfig.model_validate({"name": "online_dpo", **keys}), ActorConfig())
    rewards, mask, groups = torch.tensor([1.0, 0.0]), torch.ones(2, 1, dtype=torch.bool), torch.zeros(2)
    columns = {"logprobs_BT": torch.tensor([[-1.0], [-4.0]]), "reference_BT": torch.tensor([[-2.0], [-2.0]])}
    got = resolved.advantage(rewards, mask, groups, **columns)
    assert got.flatten().tolist() == [-4.0, 4.0], "-2 (z - 1 / (2 beta)) with z = 3"
    assert resolved.measure is not None
    assert finish(resolved.measure(rewards, mask, groups, **columns))["pref/margin"] == 1.5
    sppo = resolve(AlgorithmConfig(name="sppo", preference_eta=4.0), ActorConfig())
    columns["sampler_BT"] = columns.pop("reference_BT")
    assert sppo.advantage(rewards, mask, groups, **columns).flatten().tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "keys", "told"),
    [
        ("grpo", {"preference_beta": 0.5}, "no effect.*'grpo'.*online_dpo, spin"),
        ("sppo", {"preference_beta": 0.5}, "no effect.*'sppo'"),
        ("spin", {"preference_loss": "ipo"}, "no effect.*'spin'.*online_dpo"),
        ("online_dpo", {"preference_eta": 1.0}, "no effect.*'online_dpo'.*sppo"),
        ("online_dpo", {"preference_loss": "dpo"}, "preference_loss = 'dpo' is not known.*sigmoid"),
        ("online_dpo", {"preference_loss": "hinge", "preference_smoothing": 0.1}, "preference_smoothing.*'hinge'"),
    ],
)
def test_a_key_of_another_loss_is_refused(name: str, keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        resolve(AlgorithmConfig(name=name, **keys), ActorConfig())
