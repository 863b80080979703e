"""A configuration's keys about three policies, sampler, proximal and current, on top of a row."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from asyncrl.algorithms.base import Algorithm, CorrectionRule, ProximalRule
from asyncrl.algorithms.choices import first, known, settings_of
from asyncrl.algorithms.sections import AlgorithmSection
from asyncrl.algorithms.staleness import proximal_between
from asyncrl.algorithms.tables import LOSSES
from asyncrl.errors import ConfigError

PROXIMAL: Mapping[str, ProximalRule | None] = MappingProxyType(
    {
        "recompute": None,
        "loglinear": partial(proximal_between, method="loglinear"),
        "linear": partial(proximal_between, method="linear"),
    }
)
"""Where the clip is centred: on the weights at the start of the step, or between them and the sampler's."""


@dataclass(frozen=True)
class OffPolicyParts:
    """The parts of a row that these keys set; see `base.Algorithm`."""

    bypass: bool
    normalize_weights: bool
    proximal: ProximalRule | None


def off_policy_parts(
    row: Algorithm, asked: AlgorithmSection, loss_name: str, correction: CorrectionRule | None
) -> OffPolicyParts:
    """The row's parts with the keys that are set in their place.

    Raises:
        ConfigError: an unknown name, or keys that have no effect or count a ratio twice together.
    """
    bypass = first(asked.bypass, row.bypass)
    weighs = correction is not None and settings_of(correction).get("weighting") is not None
    if bypass and weighs and LOSSES[loss_name].has_ratio:
        raise ConfigError(
            f"algorithm.bypass with algorithm.loss = {loss_name!r} and a correction by importance weights: the loss's "
            "own ratio already is that of the current policy over the sampler's, and would be counted twice. Set "
            "algorithm.correction to none, mask_sequence or mask_geometric, or algorithm.loss to reinforce."
        )
    normalize = first(asked.correction_normalize, row.normalize_weights)
    if normalize and not weighs:
        raise ConfigError(
            "algorithm.correction_normalize has no effect: the correction has no importance weights. Remove it, or set "
            "algorithm.correction to tis, tis_sequence or icepop."
        )
    if normalize and bypass:
        raise ConfigError(
            "algorithm.correction_normalize together with algorithm.bypass: the weights then change with every "
            "optimizer step, and so would their mean. Remove one of them."
        )
    proximal = row.proximal
    if asked.proximal is not None:
        known("algorithm.proximal", asked.proximal, PROXIMAL)
        proximal = PROXIMAL[asked.proximal]
    if bypass and proximal is not None:
        raise ConfigError(
            f"algorithm.proximal = {asked.proximal!r} has no effect with algorithm.bypass, which centres the ratio on "
            "the sampler's own logprobs. Remove one of them."
        )
    return OffPolicyParts(bypass, normalize, proximal)
