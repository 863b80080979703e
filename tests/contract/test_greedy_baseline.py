"""The rollout cluster plays a greedy answer for exactly the algorithms whose advantages look at its reward."""

import pytest

from asyncrl.algorithms import ALGORITHMS, resolve
from asyncrl.config import ActorConfig, AlgorithmConfig
from asyncrl.config.greedy_baseline import ESTIMATORS, plays_greedy_baseline

COLUMN = "baselines_B"


def test_the_rollout_clusters_list_is_that_of_the_rows() -> None:
    assert {name for name, row in ALGORITHMS.items() if COLUMN in row.columns} == ESTIMATORS


@pytest.mark.parametrize("keys", [{"name": "remax"}, {"name": "grpo", "adv_estimator": "remax"}, {"name": "grpo"}])
def test_both_clusters_read_the_same_from_a_configuration(keys: dict[str, str]) -> None:
    section = AlgorithmConfig.model_validate(keys)
    asks = COLUMN in resolve(section, ActorConfig(), max_new_tokens=8).columns
    assert plays_greedy_baseline(section) == asks == ("remax" in keys.values())


def test_an_estimator_of_another_row_takes_the_place_of_the_greedy_answer() -> None:
    assert not plays_greedy_baseline(AlgorithmConfig(name="remax", adv_estimator="rloo"))
