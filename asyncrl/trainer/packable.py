"""Whether a model can read packed rows, and the switch of its attention if it can."""

import inspect
import logging

from transformers import PreTrainedModel

from asyncrl.errors import ConfigError
from asyncrl.trainer.attention import ATTENTION

log = logging.getLogger(__name__)

_LAYERS = frozenset(("full_attention", "sliding_attention"))
"""Kinds of layers, in the words of transformers' configurations, that see a document alone when attention does."""


def choose_packing(module: PreTrainedModel, wanted: bool | None, *, key: str) -> bool:
    """Whether the model reads packed rows; if so, its attention is within their documents from now on.

    Args:
        wanted: pack (True), pad (False), or pack if the model can (None).
        key: of the configuration that says so, for errors.
    Raises:
        ConfigError: the model cannot and should.
    """
    if wanted is False:
        return False
    reason = why_not(module)
    if reason is None:
        module.set_attn_implementation(ATTENTION)
        return True
    if wanted:
        raise ConfigError(
            f"{key} = true, but a {type(module).__name__} cannot read packed rows: {reason}. Set it to false: rows are "
            "padded to the longest of a micro-batch then."
        )
    log.warning("rows are padded, not packed: a %s cannot read packed rows, %s", type(module).__name__, reason)
    return False


def why_not(module: PreTrainedModel) -> str | None:
    """What keeps a model from reading packed rows; None: nothing."""
    models = [part for part in module.modules() if isinstance(part, PreTrainedModel)]
    if not all(part._supports_attention_backend and part._can_set_attn_implementation() for part in models):
        return "its attention cannot be replaced by another function"
    config = module.config.get_text_config()
    layers = set(getattr(config, "layer_types", None) or ()) - _LAYERS
    if layers or any(part._is_stateful for part in models):
        return f"its layers ({', '.join(sorted(layers)) or 'recurrent'}) carry a state past the end of a document"
    if "position_ids" not in inspect.signature(module.forward).parameters:
        return "it takes no positions of tokens, which begin anew with every document"
    if getattr(config, "attn_logit_softcapping", None) is not None:
        return "its attention has a soft cap on its scores"
    if any(name.rpartition(".")[2] == "sinks" for name, _ in module.named_parameters()):
        return "its attention has sinks"
    return None
