"""A configuration on top of a row: every key changes what it says, and impossible combinations are refused by name."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial

import pytest

from asyncrl.algorithms import ALGORITHMS, Algorithm, resolve
from asyncrl.algorithms.base import RewardKL
from asyncrl.algorithms.kl import KLController
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES
from asyncrl.errors import ConfigError


@dataclass(frozen=True)
class AlgorithmKeys:
    name: str = "grpo"
    adv_estimator: str | None = None
    gamma: float | None = None
    lam: float | None = None
    loss: str | None = None
    loss_agg_mode: str | None = None
    norm_length: int | None = None
    correction: str | None = None
    correction_cap: float | None = None
    kl_coef: float | None = None
    kl_estimator: str | None = None
    entropy_coef: float | None = None
    distill_coef: float | None = None
    distill_estimator: str | None = None
    filter_zero_variance: bool | None = None
    max_nonfinite_frac: float = 0.01
    loss_settings: Mapping[str, float] = field(default_factory=dict)
    selection_settings: Mapping[str, float] = field(default_factory=dict)
    correction_normalize: bool | None = None
    bypass: bool | None = None
    proximal: str | None = None
    reward_kl_coef: float | None = None
    reward_kl_estimator: str | None = None
    reward_kl_target: float | None = None
    reward_kl_horizon: float | None = None
    overlong_buffer: int | None = None
    overlong_factor: float | None = None
    filter_overlong: bool | None = None
    preference_loss: str | None = None
    preference_beta: float | None = None
    preference_smoothing: float | None = None
    preference_eta: float | None = None


@dataclass(frozen=True)
class ActorKeys:
    clip_ratio: float | None = None
    clip_ratio_low: float | None = None
    clip_ratio_high: float | None = None
    clip_ratio_c: float | None = None
    clip_lag_scale: float | None = None
    ppo_epochs: int = 1
    ppo_mini_batches: int = 1


ACTOR_KEYS = {field.name for field in fields(ActorKeys)}


def resolved(max_new_tokens: int | None = None, **keys: object) -> Algorithm:
    actor = {key: keys.pop(key) for key in list(keys) if key in ACTOR_KEYS}
    return resolve(
        AlgorithmKeys(**keys),  # type: ignore[arg-type]  # each test's own keys
        ActorKeys(**actor),  # type: ignore[arg-type]
        max_new_tokens=max_new_tokens,
    )


def settings(part: object) -> dict[str, object]:
    assert isinstance(part, partial)
    return part.keywords


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_row_without_overrides_is_the_row(name: str) -> None:
    assert resolved(name=name) == ALGORITHMS[name]


@pytest.mark.parametrize(
    ("keys", "part", "expected"),
    [
        ({"adv_estimator": "rloo"}, "advantage", ALGORITHMS["rloo"].advantage),
        ({"loss": "cispo"}, "loss", LOSSES["cispo"].loss),
        ({"loss_agg_mode": "token-sum"}, "aggregation", "token-sum"),
        ({"correction": "icepop"}, "correction", CORRECTIONS["icepop"]),
        ({"correction": "none"}, "correction", None),
        ({"kl_coef": 0.5}, "kl_coef", 0.5),
        ({"kl_estimator": "k3+"}, "kl_estimator", "k3+"),
        ({"entropy_coef": 0.25}, "entropy_coef", 0.25),
        ({"filter_zero_variance": True}, "filter_zero_variance", True),
        ({"max_nonfinite_frac": 0.5}, "max_nonfinite_frac", 0.5),
    ],
)
def test_every_key_replaces_its_part_of_the_row_and_nothing_else(
    keys: dict[str, object], part: str, expected: object
) -> None:
    got = resolved(**keys)
    assert getattr(got, part) == expected
    for one in fields(Algorithm):
        if one.name != part:
            assert getattr(got, one.name) == getattr(ALGORITHMS["grpo"], one.name)


def test_false_and_zero_are_answers_and_not_the_rows_own() -> None:
    assert resolved(name="dapo", filter_zero_variance=False).filter_zero_variance is False
    assert resolved(kl_coef=0.0).kl_coef == 0.0


def test_clip_keys_set_the_sides_they_name() -> None:
    assert settings(resolved(clip_ratio=0.5).loss) == {"low": 0.5, "high": 0.5, "dual_clip": 3.0}
    assert settings(resolved(clip_ratio_high=0.28).loss) == {"low": 0.2, "high": 0.28, "dual_clip": 3.0}
    assert settings(resolved(clip_ratio_low=0.1, clip_ratio_c=5.0).loss) == {"low": 0.1, "high": 0.2, "dual_clip": 5.0}
    assert settings(resolved(name="gspo", clip_ratio_high=6e-4).loss) == {"low": 3e-4, "high": 6e-4}


def test_a_clip_range_that_follows_the_lag_is_a_setting_of_the_loss_that_has_one() -> None:
    got = resolved(clip_lag_scale=0.9)
    assert settings(got.loss)["lag_scale"] == 0.9
    assert got.loss_columns == ("lags_BT",)
    assert resolved().loss_columns == ()
    with pytest.raises(ConfigError, match=r"actor.clip_lag_scale = 0.9 has no effect with algorithm.loss = 'sapo'"):
        resolved(name="sapo", clip_lag_scale=0.9)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"reward_kl_target": 0.1}, "reward_kl_target = 0.1 has no effect without algorithm.reward_kl_coef"),
        ({"reward_kl_coef": 0.1, "reward_kl_horizon": 9.0}, "without algorithm.reward_kl_target"),
        ({"reward_kl_coef": 0.1, "reward_kl_estimator": "k4"}, "reward_kl_estimator = 'k4' is not known"),
        ({"overlong_factor": 2.0}, "without algorithm.overlong_buffer"),
        ({"overlong_buffer": 5}, "must be at most rollout.max_new_tokens = None"),
        ({"bypass": True}, "would be counted twice"),
        ({"bypass": True, "correction": "none", "proximal": "linear"}, "no effect with algorithm.bypass"),
        ({"correction": "none", "correction_normalize": True}, "has no importance weights"),
        ({"bypass": True, "loss": "reinforce", "correction_normalize": True}, "together with algorithm.bypass"),
        ({"proximal": "cubic"}, "proximal = 'cubic' is not known"),
        (
            {"loss_settings": {"beta": 1.0}},
            "algorithm.loss_settings.beta = 1.0 is no setting of algorithm.loss",
        ),
        ({"loss_settings": {"low": 0.1}}, "is set by actor.clip_ratio_low"),
        ({"selection_settings": {"threshold": 0.1}}, "is no setting of this algorithm's selection, which has none"),
        ({"name": "m2po", "bypass": True, "correction": "none"}, "the ratio would be cut twice"),
        ({"name": "online_dpo", "entropy_coef": 0.01}, "so the term would be a sum, too"),
    ],
)
def test_keys_that_mean_nothing_together_are_refused(keys: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        resolved(**keys)


def test_a_penalty_of_the_reward_is_resolved_with_its_controller() -> None:
    got = resolved(reward_kl_coef=0.01, reward_kl_target=0.1).reward_kl
    assert got == RewardKL(KLController(0.01, 0.1, 10_000.0), "k1")
    assert resolved(reward_kl_coef=0.0).reward_kl is None


def test_numbers_of_a_loss_and_of_a_selection_are_set_by_their_names() -> None:
    assert settings(resolved(name="dro", loss_settings={"beta": 0.5}).loss)["beta"] == 0.5
    got = resolved(name="m2po", selection_settings={"threshold": 0.1}).selection
    assert got is not None
    assert got.rejects
    assert settings(got.rule) == {"threshold": 0.1}


def test_naming_the_rows_own_loss_keeps_the_rows_settings() -> None:
    assert settings(resolved(name="dapo", loss="ppo_clip").loss) == {"low": 0.2, "high": 0.28, "dual_clip": 10.0}


def test_a_cap_changes_the_weights_of_the_correction_in_force() -> None:
    assert settings(resolved(correction_cap=5.0).correction)["weighting"].upper == 5.0  # type: ignore[attr-defined]
    got = resolved(correction="icepop", correction_cap=3.0).correction
    assert (settings(got)["weighting"].lower, settings(got)["weighting"].upper) == (0.5, 3.0)  # type: ignore[attr-defined]


def test_another_loss_brings_its_aggregation_unless_a_mode_is_set() -> None:
    assert resolved(loss="gspo").aggregation == "seq-mean-token-mean"
    assert resolved(loss="gspo", loss_agg_mode="token-mean").aggregation == "token-mean"
    assert resolved(name="dr_grpo", loss="ppo_clip").aggregation == "seq-mean-token-sum-norm"


def test_the_norm_length_is_the_configured_one_or_the_longest_response() -> None:
    assert resolved(name="dr_grpo", max_new_tokens=64).norm_length == 64
    assert resolved(name="dr_grpo", norm_length=100, max_new_tokens=64).norm_length == 100
    assert resolved(max_new_tokens=64).norm_length is None


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ({"clip_ratio": 0.2, "clip_ratio_low": 0.1}, ["actor.clip_ratio = 0.2", "actor.clip_ratio_low = 0.1"]),
        ({"clip_ratio": 0.2, "clip_ratio_high": 0.1}, ["actor.clip_ratio = 0.2", "actor.clip_ratio_high = 0.1"]),
        ({"name": "gmpo", "loss_agg_mode": "token-mean"}, ["algorithm.loss_agg_mode", "algorithm.loss = 'gmpo'"]),
        ({"loss": "gmpo", "loss_agg_mode": "seq-mean-token-sum"}, ["algorithm.loss_agg_mode", "gmpo"]),
        ({"kl_estimator": "k1"}, ["algorithm.kl_estimator = 'k1'", "'k1+'"]),
        ({"kl_estimator": "kl", "kl_coef": 0.1}, ["algorithm.kl_estimator = 'kl'"]),
        ({"kl_estimator": "full"}, ["algorithm.kl_estimator = 'full'", "k2"]),
        ({"name": "gpg", "clip_ratio": 0.2}, ["actor.clip_ratio = 0.2", "algorithm.loss = 'reinforce'", "ppo_clip"]),
        ({"loss": "sapo", "clip_ratio_low": 0.1}, ["actor.clip_ratio_low", "sapo"]),
        ({"name": "gspo", "clip_ratio_c": 3.0}, ["actor.clip_ratio_c = 3.0", "algorithm.loss = 'gspo'", "ppo_clip"]),
        ({"loss_agg_mode": "mean"}, ["algorithm.loss_agg_mode = 'mean'", "token-mean"]),
        ({"norm_length": 10}, ["algorithm.norm_length = 10", "token-mean"]),
        ({"correction": "none", "correction_cap": 2.0}, ["algorithm.correction_cap = 2.0", "algorithm.correction"]),
        ({"correction": "mask_sequence", "correction_cap": 2.0}, ["algorithm.correction_cap = 2.0", "mask_sequence"]),
        ({"correction": "icepop", "correction_cap": 0.5}, ["algorithm.correction_cap = 0.5", "lower bound 0.5"]),
        ({"correction": "icepopp"}, ["algorithm.correction = 'icepopp'", "Did you mean 'icepop'?"]),
        ({"name": "grp"}, ["algorithm.name = 'grp'", "Did you mean 'grpo'?"]),
        ({"adv_estimator": "gae"}, ["algorithm.adv_estimator = 'gae'", "rloo"]),
        ({"loss": "vanilla"}, ["algorithm.loss = 'vanilla'", "ppo_clip"]),
    ],
)
def test_what_cannot_be_is_refused_with_the_names_of_the_keys(keys: dict[str, object], names: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(**keys)
    for name in names:
        assert name in str(caught.value)


def test_the_keys_of_the_distillation_term_replace_the_rows() -> None:
    row = resolved(distill_coef=0.5, distill_estimator="k3+")
    assert (row.distill_coef, row.distill_estimator) == (0.5, "k3+")
    assert resolved().distill_coef == 0


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"distill_estimator": "k2"}, "no effect without algorithm.distill_coef"),
        ({"distill_coef": 1.0, "distill_estimator": "k1"}, "cannot be a loss term.*'k1\\+'"),
        ({"distill_coef": 1.0, "distill_estimator": "k9"}, "'k9' is not known"),
    ],
)
def test_a_distillation_estimator_without_effect_is_refused(keys: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        resolved(**keys)
