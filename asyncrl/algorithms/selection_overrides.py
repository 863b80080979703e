"""Which selection comes with the loss that a configuration names, and with the clip range that it sets."""

from dataclasses import replace

from asyncrl.algorithms.base import Algorithm, PolicyLoss, Selection
from asyncrl.algorithms.choices import function_of, settings_of, with_settings
from asyncrl.algorithms.tables import LOSSES
from asyncrl.errors import ConfigError


def selection_for(row: Algorithm, loss: PolicyLoss, loss_name: str) -> Selection | None:
    """The row's selection if it rejects or belongs to the row's own loss, else that of the loss in force.

    Args:
        loss: in force, with the configuration's clip range, which a rule that looks at clipped tokens takes over.
    Raises:
        ConfigError: the row's selection rejects, and the loss has another one.
    """
    selection = LOSSES[loss_name].selection
    if row.selection is not None and row.selection.rejects:
        if selection is not None:
            raise ConfigError(
                f"algorithm.name = {row.name!r} rejects tokens by a rule over the whole mini-batch, and algorithm.loss "
                f"= {loss_name!r} selects tokens by another, but there is one selection a step. Name a loss without a "
                "selection, or another algorithm."
            )
        return row.selection
    if selection is not None and function_of(row.loss) is function_of(loss):
        selection = row.selection
    if selection is None:
        return None
    own, in_force = settings_of(selection.rule), settings_of(loss)
    bounds = {name: in_force[name] for name in ("low", "high") if name in own and in_force[name] != own[name]}
    return replace(selection, rule=with_settings(selection.rule, bounds)) if bounds else selection
