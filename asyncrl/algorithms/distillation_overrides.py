"""A configuration's keys about the distillation term on top of a row."""

from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.choices import first, known
from asyncrl.algorithms.distillation import DISTILL_ESTIMATORS
from asyncrl.algorithms.kl import KL_ESTIMATORS, UNBIASED_IN_A_LOSS
from asyncrl.algorithms.sections import AlgorithmSection
from asyncrl.errors import ConfigError


def distillation(row: Algorithm, asked: AlgorithmSection) -> tuple[float, str]:
    """Coefficient and estimator of the term, with the keys that are set in place of the row's.

    Raises:
        ConfigError: an estimator that has no effect because the term is off, that cannot be a loss, or is not known.
    """
    coef = first(asked.distill_coef, row.distill_coef)
    kind = asked.distill_estimator
    if kind is not None and coef == 0:
        raise ConfigError(
            f"algorithm.distill_estimator = {kind!r} has no effect without algorithm.distill_coef: the loss has no "
            "distillation term. Set distill_coef (1 is usual), or remove it."
        )
    if kind in KL_ESTIMATORS and kind not in UNBIASED_IN_A_LOSS:
        raise ConfigError(
            f"algorithm.distill_estimator = {kind!r} cannot be a loss term: its gradient has mean 0, so it would pull "
            f"the policy nowhere. Use 'k2', or {kind + '+'!r} for its value with the gradient of k2."
        )
    kind = first(kind, row.distill_estimator)
    known("algorithm.distill_estimator", kind, DISTILL_ESTIMATORS)
    return coef, kind
