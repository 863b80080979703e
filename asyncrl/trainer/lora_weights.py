"""An adapter as the weights of a policy: A and B are trained, the servers get the frozen weights with B A added."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from asyncrl.errors import CheckpointError, ConfigError
from asyncrl.trainer.lora import NAME, AdaptedLayer, Adapter, frozen_parameters
from asyncrl.trainer.models import Model
from asyncrl.trainer.stored import parts_of, stored_tensors
from asyncrl.trainer.weights import Wire, stored_buffers
from weightsync.adapter_layout import UP
from weightsync.held_runs import Run, held
from weightsync.low_rank import add_product
from weightsync.shard import LocalShard, shards_of


class AdapterWeights:
    """A module of which the adapter alone is trained."""

    def __init__(self, module: PreTrainedModel, adapter: Adapter, *, travels_as: str | None = None) -> None:
        """Take an adapter that is in its module.

        Args:
            travels_as: servers get A and B in this dtype and add them to the model themselves; None: they get sums.
        Raises:
            ConfigError: the model's directory has a layer of the adapter under another name, or as part of a tensor.
        """
        self._module, self.adapter = module, adapter
        self._travels_as = travels_as
        self._frozen = frozen_parameters(module)
        self._stored = stored_tensors(module, self._frozen)
        whole = {tensor.name for tensor in self._stored if tensor.box is None and tensor.name == tensor.parameter}
        if other := next((layer for layer in adapter.layers if f"{layer}.weight" not in whole), None):
            raise ConfigError(
                f"lora.target_modules reaches {other}, whose weight is no tensor of its own in the model's directory: "
                "nobody who reads the directory could add the adapter to it. Name other layers."
            )

    def trained(self) -> dict[str, nn.Parameter]:
        """A and B of every layer."""
        return self.adapter.parameters()

    def shards(self, wire: Wire) -> list[LocalShard]:
        """The model's tensors: of adapted layers with the product added when they are read, others marked as frozen.

        A collective where the module is sharded: the small A of every layer is gathered. Of an adapter that travels
        alone: A and scaled B, in its own dtype whatever `wire` says, and nothing is gathered.
        """
        if self._travels_as is not None:
            return [self._scaled(shard) for shard in shards_of(self.adapter.parameters().items(), self._travels_as)]
        names = {tensor.name for tensor in self._stored}
        products = {f"{name}.weight": self._product(layer) for name, layer in self.adapter.layers.items()}
        shards = shards_of([*parts_of(self._stored, self._frozen), *stored_buffers(self._module, wire)], wire)
        return [
            replace(shard, made=products[shard.name])
            if shard.name in products
            else replace(shard, frozen=shard.name in names)
            for shard in shards
        ]

    def reference(self, model: Model) -> AbstractContextManager[None]:
        """The same model without its adapter: no second one is in memory."""
        del model
        return self.adapter.off()

    def facts(self) -> dict[str, Any]:
        """Rank, alpha and layers of the adapter."""
        adapter = self.adapter
        return {"lora": {"rank": adapter.rank, "alpha": adapter.alpha, "target_modules": adapter.targets}}

    def require_alike(self, state: Mapping[str, Any]) -> None:
        """Refuse a checkpoint of another adapter, or of whole weights."""
        own, saved = self.facts()["lora"], state.get("lora")
        if saved is None:
            raise CheckpointError(
                f"The checkpoint holds every weight, and lora.rank = {own['rank']} trains an adapter. Set lora.rank = "
                "0 to go on, or start a new run from its export."
            )
        differing = next((key for key in own if own[key] != saved[key]), None)
        if differing is not None:
            raise CheckpointError(
                f"The checkpoint holds an adapter with lora.{differing} = {_text(saved[differing])}, this run has "
                f"{_text(own[differing])}: they are other functions of the same weights. Set it as it was to go on, or "
                "start a new run from the merged export."
            )

    def adapter_shapes(self) -> dict[str, tuple[int, ...]] | None:
        """Of A and B, if the adapter travels alone."""
        if self._travels_as is None:
            return None
        return {name: tuple(parameter.shape) for name, parameter in self.adapter.parameters().items()}

    def _scaled(self, shard: LocalShard) -> LocalShard:
        scale = self.adapter.scale
        return replace(shard, made=lambda up: scale * up) if shard.name.endswith(UP) else shard

    def _product(self, layer: AdaptedLayer) -> Callable[[Tensor], Tensor]:
        """What adds B A to this rank's part of the layer's weight, with A and B as they are now."""
        base, up, down = layer.base_layer.weight.detach(), _weight(layer.lora_B), _weight(layer.lora_A)
        down_RI = down.full_tensor() if isinstance(down, DTensor) else down
        if not isinstance(base, DTensor):
            return partial(add_product, up_OR=self.adapter.scale * up, down_RI=down_RI)
        rows, columns = held(base)
        if isinstance(up, DTensor) and up.placements == base.placements and columns == [(0, base.shape[1])]:
            up_OR = up.to_local()  # cut along its rows as the weight is: nothing to gather
        else:
            up_OR = (up.full_tensor() if isinstance(up, DTensor) else up)[_positions(rows)]
        return partial(add_product, up_OR=self.adapter.scale * up_OR, down_RI=down_RI[:, _positions(columns)])


def _weight(modules: nn.ModuleDict) -> Tensor:
    weight = modules[NAME].weight
    assert isinstance(weight, Tensor)
    return weight.detach()


def _positions(runs: Sequence[Run]) -> Tensor | slice:
    """An index of what is held along one dimension; a slice, which copies nothing, where it is one run."""
    if len(runs) == 1:
        return slice(*runs[0])
    return torch.cat([torch.arange(low, high) for low, high in runs]) if runs else slice(0, 0)


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
