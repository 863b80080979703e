"""A configuration's numbers in place of those that a row gives to its loss and its selection, by their names there."""

from collections.abc import Mapping
from dataclasses import replace

from asyncrl.algorithms.base import PolicyLoss, Selection
from asyncrl.algorithms.choices import settings_of, with_settings
from asyncrl.errors import ConfigError

CLIP_KEYS: Mapping[str, str] = {
    "low": "actor.clip_ratio_low",
    "high": "actor.clip_ratio_high",
    "dual_clip": "actor.clip_ratio_c",
    "lag_scale": "actor.clip_lag_scale",
}
"""Settings that have keys of their own, and those of a selection that follow its loss."""


def loss_with(loss: PolicyLoss, name: str, asked: Mapping[str, float]) -> PolicyLoss:
    """The loss with the numbers of algorithm.loss_settings.

    Raises:
        ConfigError: a name that the loss does not have, or that another key sets.
    """
    _check("algorithm.loss_settings", f"algorithm.loss = {name!r}", asked, settings_of(loss))
    return with_settings(loss, asked) if asked else loss


def selection_with(selection: Selection | None, asked: Mapping[str, float]) -> Selection | None:
    """The selection with the numbers of algorithm.selection_settings.

    Raises:
        ConfigError: there is no selection, or a name that its rule does not have, or that another key sets.
    """
    if not asked:
        return selection
    own = {} if selection is None else settings_of(selection.rule)
    _check("algorithm.selection_settings", "this algorithm's selection", asked, own)
    assert selection is not None  # else every name was refused
    return replace(selection, rule=with_settings(selection.rule, asked))


def _check(key: str, part: str, asked: Mapping[str, float], own: Mapping[str, object]) -> None:
    free = sorted(name for name in own if name not in CLIP_KEYS)
    for name, value in asked.items():
        if name in CLIP_KEYS and name in own:
            raise ConfigError(
                f"{key}.{name} = {value} is set by {CLIP_KEYS[name]}, so that there is one answer to what the clip "
                "range is. Set it there."
            )
        if name not in free:
            raise ConfigError(
                f"{key}.{name} = {value} is no setting of {part}, which has {', '.join(free) or 'none'}. Remove it, or "
                "name another loss or algorithm."
            )
