"""How a module is split over the ranks that share its parameters."""

from typing import Literal

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from transformers import PreTrainedModel

from asyncrl.trainer.meshes import Meshes

Arithmetic = Literal["float32", "bfloat16"]


def shard(module: nn.Module, meshes: Meshes, arithmetic: Arithmetic, *, offload: bool = False) -> None:
    """Split parameters over the ranks (FSDP2): each decoder layer is gathered on its own, the rest with the root."""
    mesh = meshes.shards
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if arithmetic == "bfloat16" else None, reduce_dtype=torch.float32
    )
    # Pinned memory is of CUDA; without it the copies wait, and nothing else changes.
    home = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if offload else OffloadPolicy()
    for layer in decoder_layers(module):
        fully_shard(layer, mesh=mesh, mp_policy=policy, offload_policy=home)
    fully_shard(module, mesh=mesh, mp_policy=policy, offload_policy=home)


def decoder_layers(module: nn.Module) -> list[nn.Module]:
    """The repeated blocks, by the class names that transformers says must not be split."""
    models = [part for part in module.modules() if isinstance(part, PreTrainedModel)]
    names = {name for model in models for name in model._no_split_modules or ()}
    return [part for part in module.modules() if type(part).__name__ in names]
