"""Which tensors of a policy's module are trained, and what the servers hold of it: all of them, or an adapter's."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import PreTrainedModel

from asyncrl.errors import CheckpointError
from asyncrl.trainer.models import Model
from asyncrl.trainer.stored import parts_of, stored_tensors
from weightsync.shard import LocalShard, shards_of

Wire = str | Mapping[str, str]
"""What the weights are cast to on their way to the servers: one dtype of all floats, or each tensor's by name."""


class Weights(Protocol):
    """WholeWeights, and AdapterWeights in lora_weights."""

    def trained(self) -> dict[str, nn.Parameter]:
        """What the optimizer changes and a checkpoint holds, by its name there; tied ones once."""
        ...

    def shards(self, wire: Wire) -> list[LocalShard]:
        """This rank's part of the weights as the servers hold them. May be a collective."""
        ...

    def adapter_shapes(self) -> dict[str, tuple[int, ...]] | None:
        """Shapes of the tensors that travel, by name, where it is an adapter alone; None: the model's own do."""
        ...

    def reference(self, model: Model) -> AbstractContextManager[None]:
        """Within it `model`, which the policy takes for its reference, is at hand as version 0 was."""
        ...

    def facts(self) -> dict[str, Any]:
        """What a checkpoint keeps of this besides tensors. Plain data."""
        ...

    def require_alike(self, state: Mapping[str, Any]) -> None:
        """Refuse the checkpoint with this state if other tensors are trained in it, or otherwise.

        Raises:
            CheckpointError: names the key of the configuration that differs.
        """
        ...


class WholeWeights:
    """Every parameter of the module is trained."""

    def __init__(self, module: PreTrainedModel) -> None:
        self._module = module
        self._stored = stored_tensors(module, self.trained())

    def trained(self) -> dict[str, nn.Parameter]:
        """All parameters, by their names in the module."""
        return dict(self._module.named_parameters())

    def shards(self, wire: Wire) -> list[LocalShard]:
        """All parameters, and buffers that the model's directory has."""
        return shards_of([*parts_of(self._stored, self.trained()), *stored_buffers(self._module, wire)], wire)

    def adapter_shapes(self) -> None:
        """None."""
        return None

    def reference(self, model: Model) -> AbstractContextManager[None]:
        """A model of its own, brought to the device if it is offloaded."""
        return model.at_hand()

    def facts(self) -> dict[str, Any]:
        """None."""
        return {}

    def require_alike(self, state: Mapping[str, Any]) -> None:
        """Refuse a checkpoint of an adapter."""
        if "lora" in state:
            raise CheckpointError(
                f"The checkpoint holds an adapter of rank {state['lora']['rank']}, and lora.rank = 0 trains every "
                f"weight. Set lora.rank = {state['lora']['rank']} to go on, or start a new run from its merged export."
            )


def stored_buffers(module: nn.Module, wire: Wire) -> list[tuple[str, Tensor]]:
    """Buffers that the model's directory has: those that the wire names."""
    return [] if isinstance(wire, str) else [(name, buffer) for name, buffer in module.named_buffers() if name in wire]
