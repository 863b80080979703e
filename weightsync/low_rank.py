"""A frozen weight and a low-rank product: their sum, and what loads it into an engine when an adapter arrives."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weightsync.adapter_layout import BASE, DOWN, UP, base_of
from weightsync.address_map import Loads, OpaqueOperation
from weightsync.layout import TensorSpec
from weightsync.model_dir import ModelDir


def add_product(weight_OI: Tensor, up_OR: Tensor, down_RI: Tensor) -> Tensor:
    """[O, I] float32, W + B A: a layer's weight with its adapter.

    Args:
        weight_OI: any float dtype.
        up_OR, down_RI: B, scaled, and A; any float dtype.
    """
    return torch.addmm(weight_OI.float(), up_OR.float(), down_RI.float())


def loads_of(model: Loads, tensors: Sequence[TensorSpec], model_dir: Path) -> Loads:
    """What takes these tensors: the engine's model itself, or around it what makes its weights of an adapter.

    Args:
        model_dir: of the ticket; an adapter's origin says there which model the engine started from.
    """
    if any(spec.name == BASE for spec in tensors):
        return AdaptedModel(model, model_dir)
    return model


class AdaptedModel:
    """Takes A and B of layers, adds their product to the weights that the engine started from, and loads the sum.

    Those weights are read from their files, which the system keeps in memory while there is room: no engine holds a
    second copy. What arrives here has no address in the engine, by design, so it is kept beside it, verified there, and
    comes whole.
    """

    def __init__(self, model: Loads, origin: Path) -> None:
        """`origin`: directory of the adapter's version 0.0."""
        self._model = model
        zeros = ModelDir(origin)
        self._base, self._base_digest = ModelDir(base_of(origin)), bytes(zeros.words(BASE).tobytes())
        self._parts: dict[str, Tensor] = {}
        self._origin = zeros

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The engine's own."""
        return self._model.named_parameters()

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> object:
        """Take new A and B, and load the weights of their layers.

        Raises:
            OpaqueOperation: a tensor without data, which asks for its place: it has none.
            ValueError: the adapter is of another model.
        """
        layers: dict[str, None] = {}
        for name, tensor in weights:
            if type(tensor) is not Tensor:
                raise OpaqueOperation(f"{name} is added to a weight, and has no place of its own")
            if name == BASE:
                self._check_base(tensor)
                continue
            self._parts[name] = tensor
            layers[name.removesuffix(DOWN if name.endswith(DOWN) else UP)] = None
        return self._model.load_weights((f"{layer}.weight", self._sum(layer)) for layer in layers)

    def __getattr__(self, name: str) -> Any:  # Any: whatever the engine's model has
        return getattr(self._model, name)

    def _sum(self, layer: str) -> Tensor:
        device = next(iter(self._model.named_parameters()))[1].device
        weight_OI = _tensor(self._base, f"{layer}.weight").to(device)
        up_OR, down_RI = (self._part(layer + end).to(device) for end in (UP, DOWN))
        return add_product(weight_OI, up_OR, down_RI).to(weight_OI.dtype)

    def _part(self, name: str) -> Tensor:
        if name not in self._parts:  # as it was at version 0.0
            self._parts[name] = _tensor(self._origin, name)
        return self._parts[name]

    def _check_base(self, tensor: Tensor) -> None:
        if tensor.contiguous().view(torch.uint8).numpy().tobytes() != self._base_digest:
            raise ValueError(f"the adapter is of another model than {self._base.path}; no weight was changed.")


def _tensor(directory: ModelDir, name: str) -> Tensor:
    stored = directory.tensors[name]
    # A copy: torch takes no memory that it may not write to.
    words = torch.from_numpy(directory.words(name).copy())
    return words.view(torch.uint8).view(getattr(torch, stored.dtype)).reshape(stored.shape)
