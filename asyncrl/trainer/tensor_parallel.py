"""Matrix products that ranks share, by the plan that transformers keeps with a model: columns first, then rows.

Between a product split by columns and the next one, split by rows, each rank works on its own heads or its own part of
the width; after the second one the parts are summed (arXiv 1909.08053, section 3). What the plan does not name, and
routed experts, are whole on each of these ranks. A vocabulary that they do not divide stays whole, too.
"""

import re
from collections.abc import Callable, Mapping

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module
from transformers import PreTrainedModel

from asyncrl.errors import ConfigError
from asyncrl.trainer.heads import require_whole_heads
from asyncrl.trainer.sliced_layers import Columns, EachHead, Rows, Vocabulary

STYLES: Mapping[str, Callable[[], ParallelStyle]] = {
    "colwise": Columns,
    "rowwise": Rows,
    "colwise_rep": lambda: Columns(gathers=True),
    "colwise_gather_output": lambda: Columns(gathers=True),
    "rowwise_rep": lambda: Rows(splits=True),
    "rowwise_split_input": lambda: Rows(splits=True),
    "embedding_rowwise": Vocabulary,
    "replicated_with_grad_allreduce": EachHead,
}
"""Styles of transformers' plans -> those of sliced_layers."""

WHOLE = ("moe_tp_experts", "replicate")
"""Styles of modules that every rank may as well hold and run whole: what comes out is the same."""


def split_products(module: nn.Module, mesh: DeviceMesh) -> set[nn.Module]:
    """Turn what the plan names into slices, this rank's of each.

    Args:
        module: whole, on any device; a model of transformers or one that holds some.
        mesh: the ranks that share the products.
    Returns:
        Heads whose logits stay in parts: each rank has those of as many consecutive tokens, in the order of ranks.
    Raises:
        ConfigError: a model has no plan, one that is not understood, or heads or a width that are no multiple of the
            ranks.
    """
    models = [part for part in module.modules() if isinstance(part, PreTrainedModel)]
    outermost = [part for part in models if not any(part in set(other.modules()) - {other} for other in models)]
    return {head for model in outermost if (head := _split_model(model, mesh)) is not None}


def _split_model(model: PreTrainedModel, mesh: DeviceMesh) -> nn.Module | None:
    named = dict(model.named_modules())
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    ends = [name for name, part in named.items() if part is embedding or part is head]
    chosen = _chosen(model, named)
    if not chosen.keys() - set(ends):
        raise ConfigError(
            f"trainer.parallel.tp = {mesh.size()}, but {type(model).__name__} has no tensor-parallel plan for its "
            "layers (base_model_tp_plan of its configuration), so which products may be cut is unknown. Set "
            "trainer.parallel.tp to 1 and split with trainer.parallel.fsdp."
        )
    require_whole_heads(model.config.get_text_config().to_dict(), mesh.size(), where=type(model).__name__)
    for name, style in chosen.items():
        if style not in STYLES or name not in named:
            raise ConfigError(
                f"trainer.parallel.tp = {mesh.size()}: the plan of {type(model).__name__} wants {name} split in the "
                f"style {style!r}; known are, of layers, {', '.join(STYLES)}. Set trainer.parallel.tp to 1 and split "
                "with trainer.parallel.fsdp."
            )
        if not isinstance(named[name], nn.Linear | nn.Embedding) and style != "replicated_with_grad_allreduce":
            raise ConfigError(
                f"trainer.parallel.tp = {mesh.size()}: {name} is a {type(named[name]).__name__}, which cannot be cut "
                "into slices. Set trainer.parallel.tp to 1 and split with trainer.parallel.fsdp."
            )
    tied = head is not None and embedding.weight is head.weight
    uneven = {name for name, style in chosen.items() if _width(named[name], style) % mesh.size()}
    whole = {name for name in ends if name in uneven}
    if tied and (whole or any(name not in chosen for name in ends)):
        whole = set(ends)
    for name in uneven - whole:
        raise ConfigError(
            f"trainer.parallel.tp = {mesh.size()} does not divide the width of {name} in {type(model).__name__}: "
            f"{named[name]}. Set it to a divisor, and split further with trainer.parallel.fsdp."
        )
    styles = {name: STYLES[style]() for name, style in chosen.items() if name not in whole}
    shared = [name for name in styles if named[name] is head]
    styles |= {name: Columns() for name in shared}  # whatever the plan says: what the logits are for is made of parts
    parallelize_module(model, mesh, styles)
    if tied:
        head.weight = embedding.weight  # each was cut for itself; they are one parameter still
    return head if shared else None


def _chosen(model: PreTrainedModel, named: Mapping[str, nn.Module]) -> dict[str, str]:
    """Module or parameter -> style, where the plan names one that cuts."""
    plan = {name: style for name, style in dict(model.tp_plan).items() if style not in WHOLE}
    whole = tuple(name for name, style in dict(model.tp_plan).items() if style in WHOLE)
    found: dict[str, str] = {}
    for name in (*named, *(name for name, _ in model.named_parameters())):
        pattern = re.sub(r"\.\d+(?=\.|$)", ".*", name)
        # What is inside a part that stays whole stays so, too.
        if pattern in plan and not pattern.startswith(tuple(f"{part}." for part in whole)):
            found |= dict.fromkeys(_products_of(name, plan[pattern], named), plan[pattern])
    return found


def _products_of(name: str, style: str, named: Mapping[str, nn.Module]) -> list[str]:
    """The module itself; of a layer with an adapter its frozen product and the one of A and B that is cut as it is.

    By columns: every rank has A whole, and the rows of B that it has of the weight. By rows: the columns of A, whose
    products are summed, and B whole. Either way both terms of the layer's sum are what the plan says.
    """
    if f"{name}.base_layer" not in named:
        return [name]
    cut = "lora_B" if style.startswith("colwise") else "lora_A"
    return [f"{name}.base_layer", *(part for part in named if part.startswith(f"{name}.{cut}."))]


def _width(part: nn.Module, style: str) -> int:
    """The dimension that is cut; 0 where none is."""
    if isinstance(part, nn.Embedding):
        return part.num_embeddings
    if isinstance(part, nn.Linear):
        return part.out_features if style.startswith("colwise") else part.in_features
    return 0
