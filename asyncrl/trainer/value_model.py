"""A language model's trunk with one number a token in the place of logits."""

from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from asyncrl.errors import ConfigError
from asyncrl.trainer.meshes import Meshes
from asyncrl.trainer.micro_batch import Inputs
from asyncrl.trainer.model import autocast, read_model
from asyncrl.trainer.models import Arithmetic
from asyncrl.trainer.packable import choose_packing
from asyncrl.trainer.sharding import shard, shard_in_float32


class ValueModel(nn.Module):
    """Says of each trained token what is still to come, from what was there before the token.

    The head begins at zero, so that every value does, and stays in float32 whatever the trunk computes in: values are
    compared with each other in differences.
    """

    def __init__(self, trunk: PreTrainedModel, arithmetic: Arithmetic, *, is_packed: bool) -> None:
        """Take a trunk as it is. `is_packed`: it reads packed rows, and no padded ones."""
        super().__init__()
        self.trunk, self.is_packed = trunk, is_packed
        self.head = nn.Linear(trunk.config.get_text_config().hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self._arithmetic = arithmetic

    def forward(self, inputs: Inputs, predictors_N: Tensor) -> Tensor:
        """[N, 1] float32 values.

        Args:
            predictors_N: int64, place of the token before each trained token, flattened.
        """
        assert (inputs.documents is not None) == self.is_packed
        with autocast(inputs.token_ids_RT.device, self._arithmetic):
            hidden_RTH: Tensor = self.trunk(**inputs.arguments()).last_hidden_state
        hidden_NH = hidden_RTH.flatten(0, 1).index_select(0, predictors_N)
        # Not a view of it: FSDP hooks its backward pass to what a module returns.
        values_N1: Tensor = self.head(hidden_NH.float())
        return values_N1


def load_value_model(
    path: Path,
    *,
    key: str,
    arithmetic: Arithmetic,
    device: torch.device,
    meshes: Meshes | None,
    packing: bool | None = None,
    gradient_checkpointing: bool = False,
) -> ValueModel:
    """Read the trunk of a model directory into float32 master weights, on every rank its shard of them.

    Args:
        path: directory in Hugging Face form.
        key: of the configuration that names it, for errors.
        arithmetic: type of forward and backward of the trunk; masters stay float32.
        meshes: the ranks to split it over, or None.
        packing: read packed rows (True) or padded ones; None: packed ones where the model can.
        gradient_checkpointing: recompute activations in the backward pass.
    Raises:
        ConfigError: the directory holds no causal language model that transformers can read, or one that has no trunk,
            or one that cannot read packed rows and should.
    """
    whole = read_model(path, key=key, gradient_checkpointing=gradient_checkpointing)
    trunk = whole.base_model
    if trunk is whole or not isinstance(trunk, PreTrainedModel):
        raise ConfigError(
            f"{key} = {path} is a {type(whole).__name__} that has no trunk of its own below its head, so no critic can "
            "be made from it. Name a model of another class in critic.path, with the same tokenizer."
        )
    is_packed = choose_packing(whole, packing, key="critic.packing", meshes=meshes)
    model = ValueModel(trunk, arithmetic, is_packed=is_packed)
    if meshes is None:
        model.to(device)
    else:
        shard_in_float32(model.head, meshes)
        shard(model, meshes, arithmetic)
    return model
