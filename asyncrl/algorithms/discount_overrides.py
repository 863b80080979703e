"""A configuration's discount and lambda on top of an estimator that has them."""

from collections.abc import Mapping

from asyncrl.algorithms.base import AdvantageEstimator, Algorithm
from asyncrl.algorithms.choices import settings_of, with_settings
from asyncrl.algorithms.sections import AlgorithmSection
from asyncrl.errors import ConfigError


def discounted(
    rows: Mapping[str, Algorithm], name: str, advantage: AdvantageEstimator, algorithm: AlgorithmSection
) -> AdvantageEstimator:
    """The estimator with the keys that are set.

    Args:
        name: of the row that the estimator is of.
    Raises:
        ConfigError: a key that the estimator does not have.
    """
    asked = {"gamma": algorithm.gamma, "lam": algorithm.lam}
    settings = {setting: value for setting, value in asked.items() if value is not None}
    for setting, value in settings.items():
        if setting not in settings_of(advantage):
            others = sorted(other for other, row in rows.items() if setting in settings_of(row.advantage))
            raise ConfigError(
                f"algorithm.{setting} = {value} has no effect with the advantages of {name!r}, which spread one number "
                f"over an answer. Remove it, or choose an algorithm that has it: {', '.join(others)}."
            )
    return with_settings(advantage, settings) if settings else advantage
