"""A configuration's own keys on top of a row of ALGORITHMS; combinations that mean nothing are refused."""

from collections.abc import Mapping
from dataclasses import replace

from asyncrl.algorithms.aggregation import AGGREGATIONS
from asyncrl.algorithms.base import Algorithm, CorrectionRule, PolicyLoss, Selection
from asyncrl.algorithms.choices import first, function_of, known, settings_of, with_settings
from asyncrl.algorithms.corrections import Weighting
from asyncrl.algorithms.discount_overrides import discounted
from asyncrl.algorithms.distillation_overrides import distillation
from asyncrl.algorithms.kl import KL_ESTIMATORS, UNBIASED_IN_A_LOSS
from asyncrl.algorithms.off_policy_overrides import off_policy_parts
from asyncrl.algorithms.part_settings import loss_with, selection_with
from asyncrl.algorithms.preference_overrides import preference
from asyncrl.algorithms.reward_overrides import overlong, reward_kl
from asyncrl.algorithms.sections import ActorSection, AlgorithmSection
from asyncrl.algorithms.selection_overrides import selection_for
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES
from asyncrl.errors import ConfigError


def apply(
    rows: Mapping[str, Algorithm], algorithm: AlgorithmSection, actor: ActorSection, max_new_tokens: int | None
) -> Algorithm:
    """See `asyncrl.algorithms.resolve`."""
    known("algorithm.name", algorithm.name, rows)
    row = rows[algorithm.name]
    estimator = row.name if algorithm.adv_estimator is None else algorithm.adv_estimator
    known("algorithm.adv_estimator", estimator, rows)
    loss, loss_name = _loss(row, algorithm)
    loss = loss_with(_clipped(loss, loss_name, actor), loss_name, algorithm.loss_settings)
    selection = selection_with(selection_for(row, loss, loss_name), algorithm.selection_settings)
    aggregation = _aggregation(row, algorithm, loss_name)
    correction = _correction(row, algorithm)
    off_policy = off_policy_parts(row, algorithm, loss_name, correction)
    _something_to_select_by(row, selection, bypass=off_policy.bypass)
    distill_coef, distill_estimator = distillation(row, algorithm)
    _one_update_if_needed(rows[estimator], actor)
    _own_loss_if_needed(rows[estimator], algorithm)
    advantage, measure = preference(rows, rows[estimator], algorithm)
    return replace(
        row,
        advantage=discounted(rows, estimator, advantage, algorithm),
        columns=rows[estimator].columns,
        measure=measure,
        one_update_a_step=rows[estimator].one_update_a_step,
        correction=correction,
        loss=loss,
        selection=selection,
        aggregation=aggregation,
        norm_length=_norm_length(row, algorithm, aggregation, max_new_tokens),
        kl_coef=first(algorithm.kl_coef, row.kl_coef),
        kl_estimator=_kl_estimator(first(algorithm.kl_estimator, row.kl_estimator)),
        entropy_coef=first(algorithm.entropy_coef, row.entropy_coef),
        filter_zero_variance=first(algorithm.filter_zero_variance, row.filter_zero_variance),
        clip_follows_lag=actor.clip_lag_scale is not None,
        max_nonfinite_frac=algorithm.max_nonfinite_frac,
        bypass=off_policy.bypass,
        normalize_weights=off_policy.normalize_weights,
        proximal=off_policy.proximal,
        reward_kl=reward_kl(row, algorithm),
        overlong=overlong(row, algorithm, max_new_tokens),
        filter_overlong=first(algorithm.filter_overlong, row.filter_overlong),
        distill_coef=distill_coef,
        distill_estimator=distill_estimator,
    )


def _something_to_select_by(row: Algorithm, selection: Selection | None, *, bypass: bool) -> None:
    if bypass and selection is not None and selection.rejects:
        raise ConfigError(
            f"algorithm.bypass with algorithm.name = {row.name!r}: its rule compares the policy at the start of the "
            "step with the sampler's, the centre of the ratio in bypass mode, so the ratio would be cut twice. "
            "Remove bypass, or name another algorithm."
        )


def _one_update_if_needed(estimator: Algorithm, actor: ActorSection) -> None:
    updates = actor.ppo_epochs * actor.ppo_mini_batches
    if estimator.one_update_a_step and updates > 1:
        raise ConfigError(
            f"actor.ppo_epochs = {actor.ppo_epochs} and actor.ppo_mini_batches = {actor.ppo_mini_batches} make "
            f"{updates} optimizer steps a batch, but the advantages of {estimator.name!r} are the gradient of its loss "
            "at the weights they start from: from the second one on they would be those of other weights. Set both to "
            "1, and take more steps of smaller batches (schedule.groups_per_step)."
        )


def _own_loss_if_needed(estimator: Algorithm, algorithm: AlgorithmSection) -> None:
    if not estimator.one_update_a_step:
        return
    own_loss = next(name for name, choice in LOSSES.items() if choice.loss.func is function_of(estimator.loss))
    own_correction = next(name for name, rule in CORRECTIONS.items() if rule is estimator.correction)
    for key, asked, own in (
        ("name", algorithm.name, estimator.name),
        ("loss", algorithm.loss, own_loss),
        ("loss_agg_mode", algorithm.loss_agg_mode, estimator.aggregation),
        ("correction", algorithm.correction, own_correction),
    ):
        if asked not in (None, own):
            raise ConfigError(
                f"algorithm.{key} = {asked!r} with the advantages of {estimator.name!r}: they are the gradient of its "
                f"own loss only with {key} = {own!r}, and would follow no loss otherwise. Remove algorithm.{key}, or "
                "choose another adv_estimator."
            )
    for key in ("kl_coef", "entropy_coef", "distill_coef"):
        if coef := getattr(algorithm, key):
            raise ConfigError(
                f"algorithm.{key} = {coef} with the advantages of {estimator.name!r}: its loss is a mean over pairs or "
                "answers in the form of a sum over tokens, so the term would be a sum, too, and outweigh it with every "
                "token. Remove it; preference_beta holds the policy to where it is compared with."
            )


def _kl_estimator(kind: str) -> str:
    if kind in KL_ESTIMATORS and kind not in UNBIASED_IN_A_LOSS:
        raise ConfigError(
            f"algorithm.kl_estimator = {kind!r} cannot be a loss term: its gradient has mean 0, so it would add noise "
            f"and hold the policy to nothing. Use 'k2', or {kind + '+'!r} for its value with the gradient of k2."
        )
    known("algorithm.kl_estimator", kind, UNBIASED_IN_A_LOSS)
    return kind


def _loss(row: Algorithm, algorithm: AlgorithmSection) -> tuple[PolicyLoss, str]:
    """The loss with the row's settings where it is the row's own, else with those of the table."""
    own = next(name for name, choice in LOSSES.items() if choice.loss.func is function_of(row.loss))
    if algorithm.loss is None or algorithm.loss == own:
        return row.loss, own
    known("algorithm.loss", algorithm.loss, LOSSES)
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
    settings: dict[str, float] = {}
    for key, (setting, value) in asked.items():
        if value is None:
            continue
        if setting not in settings_of(loss):
            others = sorted(n for n, choice in LOSSES.items() if setting in choice.loss.keywords)
            raise ConfigError(
                f"actor.{key} = {value} has no effect with algorithm.loss = {name!r}, which has no such bound. Remove "
                f"it, or choose a loss that has one: {', '.join(others)}."
            )
        settings[setting] = value
    if both is not None:
        settings["high"] = both
    if actor.clip_lag_scale is not None:
        if not LOSSES[name].follows_lag:
            others = sorted(n for n, choice in LOSSES.items() if choice.follows_lag)
            raise ConfigError(
                f"actor.clip_lag_scale = {actor.clip_lag_scale} has no effect with algorithm.loss = {name!r}, whose "
                f"bounds do not depend on a token's age. Remove it, or choose {', '.join(others)}."
            )
        settings["lag_scale"] = actor.clip_lag_scale
    return with_settings(loss, settings) if settings else loss


def _aggregation(row: Algorithm, algorithm: AlgorithmSection, loss_name: str) -> str:
    choice = LOSSES[loss_name]
    mode = algorithm.loss_agg_mode
    if mode is not None:
        known("algorithm.loss_agg_mode", mode, AGGREGATIONS)
        if choice.aggregation_fixed:
            raise ConfigError(
                f"algorithm.loss_agg_mode = {mode!r} together with algorithm.loss = {loss_name!r}: this loss is one "
                "number a row, averaged over rows, and a mode of token losses means nothing here. Remove loss_agg_mode."
            )
        return mode
    own = function_of(row.loss) is choice.loss.func
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
        known("algorithm.correction", algorithm.correction, CORRECTIONS)
        correction, name = CORRECTIONS[algorithm.correction], repr(algorithm.correction)
    cap = algorithm.correction_cap
    if cap is None:
        return correction
    weighting = None if correction is None else settings_of(correction).get("weighting")
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
    return with_settings(correction, {"weighting": replace(weighting, upper=cap)})
