"""Which tensor of a model's directory is which part of the module's parameters.

Most are one parameter each. transformers holds the experts of a layer as one stack, gate and up projections side by
side, while directories and servers name every expert's matrices; the way back is the one that it saves models by.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from asyncrl.errors import ConfigError
from weightsync.held_runs import Run
from weightsync.shard import Part


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the directory.

    Attributes:
        name: there.
        parameter: of the module, that it is or is a part of.
        box: (start, end) along each dimension of the parameter; None: it is the whole one.
        shape: of the tensor; the box's without dimensions of size one that it lacks.
    """

    name: str
    parameter: str
    box: tuple[Run, ...] | None
    shape: tuple[int, ...]


class _StayViews(TorchFunctionMode):
    """Nothing is copied to make it contiguous, so that a part still knows where in its parameter it lies."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func is Tensor.contiguous else func(*args, **(kwargs or {}))


def stored_tensors(module: PreTrainedModel, named: Mapping[str, Tensor]) -> list[StoredTensor]:
    """Of each parameter of a model what the directory has of it.

    Args:
        named: the parameters, tied ones once, by the names that the model has them under.
    Raises:
        ConfigError: transformers computes a stored tensor from a parameter instead of cutting it out.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in named.items()}
    # Tensors without memory: only names, shapes and places are looked at.
    state = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    bases = {id(tensor): name for name, tensor in state.items()}
    with _StayViews():
        stored: Mapping[str, Tensor] = revert_weight_conversion(module, dict(state))
    found = []
    for name, tensor in stored.items():
        base = bases.get(id(tensor if tensor._base is None else tensor._base))
        box = None if base is None else _box(tensor, shapes[base])
        if base is None or box is None:
            raise ConfigError(
                f"{type(module).__name__}: transformers computes {name} from its parameters when it saves the model, "
                "instead of cutting it out of one, so the servers' weights cannot be read off the trainer's. Train a "
                "model of another class."
            )
        whole = box == tuple((0, size) for size in shapes[base])
        found.append(StoredTensor(name, base, None if whole else box, tuple(tensor.shape)))
    return found


def stored_tensors_of(directory: Path) -> list[StoredTensor]:
    """As `stored_tensors`, of all parameters of a model directory; no weight is read."""
    config = AutoConfig.from_pretrained(directory, local_files_only=True)
    with torch.device("meta"):
        # A dtype of the directory would be the process's default while the model is made, also for other threads.
        module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return stored_tensors(module, dict(module.named_parameters()))


def parts_of(stored: Iterable[StoredTensor], parameters: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor | Part]]:
    """The tensors of the directory as they are in the trainer, for weightsync.shard.shards_of."""
    for tensor in stored:
        parameter = parameters[tensor.parameter]
        yield tensor.name, parameter if tensor.box is None else Part(parameter, tensor.box)


def whole_tensors(
    stored: Iterable[StoredTensor], parameters: Iterable[tuple[str, Tensor]]
) -> Iterator[tuple[str, Tensor]]:
    """The tensors of the directory out of whole parameters, which come one after the other.

    Parameters that are not the module's (buffers) go through as they are.
    """
    by_parameter: dict[str, list[StoredTensor]] = {}
    for tensor in stored:
        by_parameter.setdefault(tensor.parameter, []).append(tensor)
    for name, value in parameters:
        for tensor in by_parameter.get(name, [StoredTensor(name, name, None, tuple(value.shape))]):
            cut = value if tensor.box is None else value[tuple(slice(low, high) for low, high in tensor.box)]
            yield tensor.name, cut.reshape(tensor.shape)


def gathered(named: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Each tensor whole, from all ranks, one after the other; a collective."""
    for name, tensor in named.items():
        value = tensor.detach()
        yield name, value.full_tensor() if isinstance(value, DTensor) else value


def _box(tensor: Tensor, whole: tuple[int, ...]) -> tuple[Run, ...] | None:
    """Where in a contiguous tensor of shape `whole` a view of it lies; None if it is no box of it, in its order."""
    steps = torch.empty(whole, device="meta").stride()
    starts = np.unravel_index(int(tensor.storage_offset()), whole) if whole else ()
    sizes = [(size, step) for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
    box = []
    for start, size, step in zip(starts, whole, steps, strict=True):
        taken = sizes.pop(0)[0] if sizes and size > 1 and sizes[0][1] == step else 1
        box.append((int(start), int(start) + taken))
    return None if sizes else tuple(box)
