"""A configuration's own keys on top of a row of ALGORITHMS; combinations that mean nothing are refused."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import Protocol, TypeVar

from asyncrl.algorithms.aggregation import AGGREGATIONS
from asyncrl.algorithms.base import Algorithm, CorrectionRule, PolicyLoss
from asyncrl.algorithms.corrections import Weighting
from asyncrl.algorithms.kl import KL_ESTIMATORS, UNBIASED_IN_A_LOSS
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES
from asyncrl.errors import ConfigError

_Result = TypeVar("_Result")


class AlgorithmSection(Protocol):
    """What `resolve` reads of the configuration section `algorithm`; None is the row's own everywhere."""

    @property
    def name(self) -> str: ...
    @property
    def adv_estimator(self) -> str | None: ...
    @property
    def loss(self) -> str | None: ...
    @property
    def loss_agg_mode(self) -> str | None: ...
    @property
    def norm_length(self) -> int | None: ...
    @property
    def correction(self) -> str | None: ...
    @property
    def correction_cap(self) -> float | None: ...
    @property
    def kl_coef(self) -> float | None: ...
    @property
    def kl_estimator(self) -> str | None: ...
    @property
    def entropy_coef(self) -> float | None: ...
    @property
    def filter_zero_variance(self) -> bool | None: ...
    @property
    def max_nonfinite_frac(self) -> float: ...


class ActorSection(Protocol):
    """What `resolve` reads of the configuration section `actor`."""

    @property
    def clip_ratio(self) -> float | None: ...
    @property
    def clip_ratio_low(self) -> float | None: ...
    @property
    def clip_ratio_high(self) -> float | None: ...
    @property
    def clip_ratio_c(self) -> float | None: ...


def apply(
    rows: Mapping[str, Algorithm], algorithm: AlgorithmSection, actor: ActorSection, max_new_tokens: int | None
) -> Algorithm:
    """See `asyncrl.algorithms.resolve`."""
    _known("algorithm.name", algorithm.name, rows)
    row = rows[algorithm.name]
    estimator = row.name if algorithm.adv_estimator is None else algorithm.adv_estimator
    _known("algorithm.adv_estimator", estimator, rows)
    loss, loss_name = _loss(row, algorithm)
    aggregation = _aggregation(row, algorithm, loss_name)
    return replace(
        row,
        advantage=rows[estimator].advantage,
        correction=_correction(row, algorithm),
        loss=_clipped(loss, loss_name, actor),
        aggregation=aggregation,
        norm_length=_norm_length(row, algorithm, aggregation, max_new_tokens),
        kl_coef=_first(algorithm.kl_coef, row.kl_coef),
        kl_estimator=_kl_estimator(_first(algorithm.kl_estimator, row.kl_estimator)),
        entropy_coef=_first(algorithm.entropy_coef, row.entropy_coef),
        filter_zero_variance=_first(algorithm.filter_zero_variance, row.filter_zero_variance),
        max_nonfinite_frac=algorithm.max_nonfinite_frac,
    )


def _first(asked: _Result | None, own: _Result) -> _Result:
    return own if asked is None else asked


def _known(key: str, value: str, allowed: Iterable[str]) -> None:
    names = sorted(allowed)
    if value in names:
        return
    near = get_close_matches(value, names, n=1, cutoff=0.5)
    raise ConfigError(
        f"{key} = {value!r} is not known. Allowed: {', '.join(names)}."
        + (f" Did you mean {near[0]!r}?" if near else "")
    )


def _kl_estimator(kind: str) -> str:
    if kind in KL_ESTIMATORS and kind not in UNBIASED_IN_A_LOSS:
        raise ConfigError(
            f"algorithm.kl_estimator = {kind!r} cannot be a loss term: its gradient has mean 0, so it would add noise "
            f"and hold the policy to nothing. Use 'k2', or {kind + '+'!r} for its value with the gradient of k2."
        )
    _known("algorithm.kl_estimator", kind, UNBIASED_IN_A_LOSS)
    return kind


def _loss(row: Algorithm, algorithm: AlgorithmSection) -> tuple[PolicyLoss, str]:
    """The loss with the row's settings where it is the row's own, else with those of the table."""
    own = next(name for name, choice in LOSSES.items() if choice.loss.func is _function(row.loss))
    if algorithm.loss is None or algorithm.loss == own:
        return row.loss, own
    _known("algorithm.loss", algorithm.loss, LOSSES)
    return LOSSES[algorithm.loss].loss, algorithm.loss


def _clipped(loss: PolicyLoss, name: str, actor: ActorSection) -> PolicyLoss:
    """The loss with the clip range of `actor`."""
    both, low, high = actor.clip_ratio, actor.clip_ratio_low, actor.clip_ratio_high
    if both is not None and (low is not None or high is not None):
        raise ConfigError(
            f"actor.clip_ratio = {both} sets both sides of the clip range, but actor.clip_ratio_low = {low} or "
            f"actor.clip_ratio_high = {high} is set too: one would silently win. Keep one form."
        )
    asked = {
        "clip_ratio": ("low", both),
        "clip_ratio_low": ("low", low),
        "clip_ratio_high": ("high", high),
        "clip_ratio_c": ("dual_clip", actor.clip_ratio_c),
    }
    settings = {}
    for key, (setting, value) in asked.items():
        if value is None:
            continue
        if setting not in _settings(loss):
            others = sorted(n for n, choice in LOSSES.items() if setting in choice.loss.keywords)
            raise ConfigError(
                f"actor.{key} = {value} has no effect with algorithm.loss = {name!r}, which has no such bound. Remove "
                f"it, or choose a loss that has one: {', '.join(others)}."
            )
        settings[setting] = value
    if both is not None:
        settings["high"] = both
    return _with(loss, settings) if settings else loss


def _aggregation(row: Algorithm, algorithm: AlgorithmSection, loss_name: str) -> str:
    choice = LOSSES[loss_name]
    mode = algorithm.loss_agg_mode
    if mode is not None:
        _known("algorithm.loss_agg_mode", mode, AGGREGATIONS)
        if choice.aggregation_fixed:
            raise ConfigError(
                f"algorithm.loss_agg_mode = {mode!r} together with algorithm.loss = {loss_name!r}: this loss is one "
                "number a row, averaged over rows, and a mode of token losses means nothing here. Remove loss_agg_mode."
            )
        return mode
    own = _function(row.loss) is choice.loss.func
    return row.aggregation if own else choice.aggregation


def _norm_length(
    row: Algorithm, algorithm: AlgorithmSection, aggregation: str, max_new_tokens: int | None
) -> int | None:
    if aggregation != "seq-mean-token-sum-norm":
        if algorithm.norm_length is not None:
            raise ConfigError(
                f"algorithm.norm_length = {algorithm.norm_length} has no effect with algorithm.loss_agg_mode = "
                f"{aggregation!r}. Remove it, or set loss_agg_mode to seq-mean-token-sum-norm."
            )
        return None
    given = (algorithm.norm_length, row.norm_length, max_new_tokens)
    return next((length for length in given if length is not None), None)


def _correction(row: Algorithm, algorithm: AlgorithmSection) -> CorrectionRule | None:
    correction, name = row.correction, f"that of {row.name}"
    if algorithm.correction is not None:
        _known("algorithm.correction", algorithm.correction, CORRECTIONS)
        correction, name = CORRECTIONS[algorithm.correction], repr(algorithm.correction)
    cap = algorithm.correction_cap
    if cap is None:
        return correction
    weighting = None if correction is None else _settings(correction).get("weighting")
    if correction is None or not isinstance(weighting, Weighting):
        raise ConfigError(
            f"algorithm.correction_cap = {cap} has no effect with algorithm.correction = {name}, which has no "
            "importance weights. Remove it, or set correction to tis, tis_sequence or icepop."
        )
    if cap <= (weighting.lower or 0.0):
        raise ConfigError(
            f"algorithm.correction_cap = {cap} must be above the lower bound {weighting.lower or 0.0} of "
            f"algorithm.correction = {name}: no weight would be left. Raise the cap."
        )
    return _with(correction, {"weighting": replace(weighting, upper=cap)})


def _function(part: Callable[..., object]) -> Callable[..., object]:
    return part.func if isinstance(part, partial) else part


def _with(part: Callable[..., _Result], settings: Mapping[str, object]) -> "partial[_Result]":
    return partial(part, **settings)


def _settings(part: Callable[..., object]) -> Mapping[str, object]:
    return part.keywords if isinstance(part, partial) else {}
