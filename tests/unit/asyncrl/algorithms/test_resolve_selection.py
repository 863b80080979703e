"""A rule over the whole mini-batch comes and goes with the loss that it belongs to, and knows its clip range."""

from typing import Any

import pytest

from asyncrl.algorithms import ALGORITHMS, Algorithm, resolve
from asyncrl.algorithms.choices import function_of, settings_of
from asyncrl.algorithms.covariance import clip_cov_selected, kl_cov_selected
from asyncrl.algorithms.tables import LOSSES
from asyncrl.config.trainer import ActorConfig, AlgorithmConfig
from asyncrl.errors import ConfigError


def resolved(actor: dict[str, Any] | None = None, **algorithm: Any) -> Algorithm:
    return resolve(AlgorithmConfig(**algorithm), ActorConfig(**(actor or {})))


def test_a_loss_with_a_selection_brings_it_to_any_row() -> None:
    assert resolved(name="dapo", loss="kl_cov").selection == LOSSES["kl_cov"].selection
    assert resolved(name="clip_cov", loss="kl_cov").selection == LOSSES["kl_cov"].selection


def test_a_loss_without_one_takes_it_away_unless_it_rejects() -> None:
    assert resolved(name="kl_cov", loss="ppo_clip").selection is None
    assert resolved(name="m2po", loss="ppo_clip").selection == ALGORITHMS["m2po"].selection


def test_two_selections_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.name = 'm2po'.*'clip_cov'.*one selection a step"):
        resolved(name="m2po", loss="clip_cov")


def test_the_rule_of_clip_cov_takes_the_clip_range_of_its_loss() -> None:
    """A token that the clip holds back already is no candidate, so that both must mean the same clip."""
    got = resolved({"clip_ratio_high": 0.3}, name="clip_cov")
    assert got.selection is not None
    assert function_of(got.selection.rule) is clip_cov_selected
    assert settings_of(got.loss)["high"] == settings_of(got.selection.rule)["high"] == 0.3
    assert settings_of(got.loss)["low"] == settings_of(got.selection.rule)["low"] == 0.2


def test_a_rule_without_a_clip_range_stays_as_it_is() -> None:
    got = resolved(name="kl_cov")
    assert got.selection is not None
    assert function_of(got.selection.rule) is kl_cov_selected
    with pytest.raises(ConfigError, match=r"actor\.clip_ratio = 0\.1 has no effect"):
        resolved({"clip_ratio": 0.1}, name="kl_cov")


def test_an_estimator_brings_the_columns_it_looks_at_and_takes_those_of_the_row_away() -> None:
    assert resolved(name="grpo", adv_estimator="otb").columns == ALGORITHMS["otb"].columns
    assert resolved(name="ppo_gae", adv_estimator="rloo").columns == ()
