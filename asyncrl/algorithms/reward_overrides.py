"""A configuration's keys about rewards on top of a row: KL in the reward, and answers near the length limit."""

from asyncrl.algorithms.base import Algorithm, Overlong, RewardKL
from asyncrl.algorithms.choices import first, known
from asyncrl.algorithms.kl import KL_ESTIMATORS, KLController
from asyncrl.algorithms.sections import AlgorithmSection
from asyncrl.errors import ConfigError

DEFAULT_HORIZON = 10_000.0
DEFAULT_ESTIMATOR = "k1"


def reward_kl(row: Algorithm, asked: AlgorithmSection) -> RewardKL | None:
    """The KL penalty of the reward, with the keys that are set in place of the row's.

    Raises:
        ConfigError: a key that has no effect because the penalty is off, or an unknown estimator.
    """
    own = row.reward_kl
    coef = first(asked.reward_kl_coef, own.controller.coef if own else 0.0)
    if coef == 0:
        for key in ("reward_kl_estimator", "reward_kl_target", "reward_kl_horizon"):
            if (value := getattr(asked, key)) is not None:
                raise ConfigError(
                    f"algorithm.{key} = {value!r} has no effect without algorithm.reward_kl_coef: there is no KL "
                    "penalty in the reward. Set reward_kl_coef (0.001 is usual), or remove the key."
                )
        return None
    target = first(asked.reward_kl_target, own.controller.target if own else None)
    if asked.reward_kl_horizon is not None and target is None:
        raise ConfigError(
            f"algorithm.reward_kl_horizon = {asked.reward_kl_horizon} has no effect without "
            "algorithm.reward_kl_target: the coefficient is fixed. Set a target (0.1 is usual), or remove the horizon."
        )
    horizon = first(asked.reward_kl_horizon, own.controller.horizon if own else DEFAULT_HORIZON)
    estimator = first(asked.reward_kl_estimator, own.estimator if own else DEFAULT_ESTIMATOR)
    known("algorithm.reward_kl_estimator", estimator, KL_ESTIMATORS)
    return RewardKL(KLController(coef, target, horizon), estimator)


def overlong(row: Algorithm, asked: AlgorithmSection, max_new_tokens: int | None) -> Overlong | None:
    """The penalty of answers near rollout.max_new_tokens, with the keys that are set in place of the row's.

    Raises:
        ConfigError: a factor without a buffer, or a buffer longer than an answer.
    """
    own = row.overlong
    buffer = first(asked.overlong_buffer, own.buffer if own else 0)
    if buffer == 0:
        if asked.overlong_factor is not None:
            raise ConfigError(
                f"algorithm.overlong_factor = {asked.overlong_factor} has no effect without algorithm.overlong_buffer: "
                "no length is punished. Set the tokens before the limit over which the penalty grows, or remove it."
            )
        return None
    limit = max_new_tokens if own is None else first(max_new_tokens, own.max_length)
    if limit is None or not buffer <= limit:
        raise ConfigError(
            f"algorithm.overlong_buffer = {buffer} must be at most rollout.max_new_tokens = {limit}: the penalty would "
            "begin before the first token. Lower it."
        )
    return Overlong(limit, buffer, first(asked.overlong_factor, own.factor if own else 1.0))
