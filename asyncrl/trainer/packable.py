"""Whether a model can read packed rows: by what its configuration says of its layers, and then by a try.

The try is two passes over a few tokens, before the model is split: it finds arguments that the model's attention has to
have and ours does not compute, and anything that is carried from one document to the next.
"""

import inspect
import logging

import torch
from transformers import PreTrainedModel

from asyncrl.errors import ConfigError
from asyncrl.trainer.attention import ATTENTION, CannotPack
from asyncrl.trainer.documents import Documents
from asyncrl.trainer.meshes import Meshes

log = logging.getLogger(__name__)

_LAYERS = frozenset(("full_attention", "sliding_attention"))
"""Kinds of layers, in the words of transformers' configurations, that see a document alone when attention does."""
_LARGEST_CHANGE = 1e-4
"""Of a logit by the document before, relative to the largest: rounding is below 1e-5 in single precision."""


def choose_packing(module: PreTrainedModel, wanted: bool | None, *, key: str, meshes: Meshes | None) -> bool:
    """Whether the model reads packed rows; if so, its attention is within their documents from now on.

    Args:
        module: whole and on the CPU.
        wanted: pack (True), pad (False), or pack if the model can (None).
        key: of the configuration that says so, for errors.
        meshes: ranks that share the tokens of a row can do so in packed ones only.
    Raises:
        ConfigError: the model cannot and should.
    """
    name, reason = type(module).__name__, "it is told not to" if wanted is False else _switched(module)
    if reason is None:
        return True
    if meshes is not None and meshes.cp is not None:
        raise ConfigError(
            f"trainer.parallel.cp = {meshes.cp.size()} shares the tokens of packed rows among ranks, but {name} "
            f"cannot read packed rows: {reason} ({key} = {str(wanted).lower()}). Set trainer.parallel.cp to 1, or name "
            "a model that can."
        )
    if wanted:
        raise ConfigError(
            f"{key} = true, but {name} cannot read packed rows: {reason}. Set it to false: rows are padded to the "
            "longest of a micro-batch then."
        )
    if wanted is None:
        log.warning("rows are padded, not packed: %s cannot read packed rows: %s", name, reason)
    return False


def _switched(module: PreTrainedModel) -> str | None:
    """Switch the attention of a model; None, or what keeps it from reading packed rows, and it is as it was."""
    reason = _by_configuration(module)
    if reason is None:
        before = module.config._attn_implementation
        module.set_attn_implementation(ATTENTION)
        reason = _by_trying(module)
        if reason is not None:
            module.set_attn_implementation(before)
    return reason


def _by_configuration(module: PreTrainedModel) -> str | None:
    models = [part for part in module.modules() if isinstance(part, PreTrainedModel)]
    config = module.config.get_text_config()
    layers = set(getattr(config, "layer_types", None) or ()) - _LAYERS
    if layers or any(part._is_stateful for part in models):
        return f"its layers ({', '.join(sorted(layers)) or 'recurrent'}) look past the bounds of a document"
    if getattr(config, "index_topk", None) is not None:
        return "its attention chooses by itself which tokens it sees"
    if not all(part._supports_attention_backend and part._can_set_attn_implementation() for part in models):
        return "its attention cannot be replaced by another function"
    if "position_ids" not in inspect.signature(module.forward).parameters:
        return "it takes no positions of tokens, which begin anew with every document"
    return None


@torch.no_grad()
def _by_trying(module: PreTrainedModel) -> str | None:
    was_training = module.training
    module.eval()  # some routers add noise in training
    try:
        ids, cpu = torch.tensor([[1, 2, 3, 2, 3, 1]]), torch.device("cpu")
        positions = torch.tensor([[0, 1, 2, 0, 1, 2]])
        both = module(input_ids=ids, position_ids=positions, documents=Documents.of([3, 3], cpu), use_cache=False)
        second = {"input_ids": ids[:, 3:], "position_ids": positions[:, 3:]}
        alone = module(**second, documents=Documents.of([3], cpu), use_cache=False)
    except CannotPack as error:
        return error.reason
    finally:
        module.train(was_training)
    change = (both.logits[:, 3:] - alone.logits).abs().max() / alone.logits.abs().max().clamp(min=1e-30)
    return None if change < _LARGEST_CHANGE else f"a document changes the next one's logits, by {float(change):.1e}"
