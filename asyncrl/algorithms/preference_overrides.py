"""A configuration's keys of preference losses on top of an estimator that has them."""

from collections.abc import Mapping

from asyncrl.algorithms.base import AdvantageEstimator, AdvantageMeasure, Algorithm
from asyncrl.algorithms.choices import known, settings_of, with_settings
from asyncrl.algorithms.preference import PAIR_KINDS
from asyncrl.algorithms.sections import AlgorithmSection
from asyncrl.errors import ConfigError


def preference(
    rows: Mapping[str, Algorithm], estimator: Algorithm, algorithm: AlgorithmSection
) -> tuple[AdvantageEstimator, AdvantageMeasure | None]:
    """The estimator and what measures it, with the keys that are set.

    Raises:
        ConfigError: a key that the estimator does not have, a loss that is not known, or smoothing with a loss that has
            none.
    """
    asked = {
        "kind": algorithm.preference_loss,
        "beta": algorithm.preference_beta,
        "label_smoothing": algorithm.preference_smoothing,
        "eta": algorithm.preference_eta,
    }
    keys = dict(zip(asked, ("loss", "beta", "smoothing", "eta"), strict=True))
    settings = {setting: value for setting, value in asked.items() if value is not None}
    own = settings_of(estimator.advantage)
    for setting, value in settings.items():
        if setting not in own:
            others = sorted(name for name, row in rows.items() if setting in settings_of(row.advantage))
            raise ConfigError(
                f"algorithm.preference_{keys[setting]} = {value!r} has no effect with the advantages of "
                f"{estimator.name!r}. Remove it, or choose an algorithm that has it: {', '.join(others)}."
            )
    kind = algorithm.preference_loss or own.get("kind")
    if algorithm.preference_loss is not None:
        known("algorithm.preference_loss", algorithm.preference_loss, PAIR_KINDS)
    if algorithm.preference_smoothing and kind != "sigmoid":
        raise ConfigError(
            f"algorithm.preference_smoothing = {algorithm.preference_smoothing} has no effect with "
            f"algorithm.preference_loss = {kind!r}: only sigmoid knows labels that may be wrong. Remove one of the two."
        )
    measure = estimator.measure
    if measure is not None and "beta" in settings:
        measure = with_settings(measure, {"beta": settings["beta"]})
    return with_settings(estimator.advantage, settings) if settings else estimator.advantage, measure
