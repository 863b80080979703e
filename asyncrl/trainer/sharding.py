"""How a module is split over the ranks that share its parameters."""

from collections.abc import Set as AbstractSet

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from transformers import PreTrainedModel

from asyncrl.trainer.meshes import Meshes
from asyncrl.trainer.models import Arithmetic
from asyncrl.trainer.routing import routers
from asyncrl.trainer.tensor_parallel import split_products


def shard(
    module: nn.Module, meshes: Meshes, arithmetic: Arithmetic, *, offload: bool = False
) -> AbstractSet[nn.Module]:
    """Split products over ranks, then parameters (FSDP2): each decoder layer is gathered on its own, the rest with the
    root.

    Args:
        module: whole, on the CPU or on this rank's device.
        offload: keep this module's parameters in CPU memory, whatever `meshes` say.
    Returns:
        Heads whose logits stay in parts, see split_products.
    Raises:
        ConfigError: the model's products cannot be split over so many ranks.
    """
    shared: AbstractSet[nn.Module] = frozenset()
    if meshes.tp is not None:
        shared = split_products(module, meshes.tp)
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if arithmetic == "bfloat16" else None, reduce_dtype=torch.float32
    )
    home = _home(meshes, offload=offload)
    if arithmetic != "float32":
        for _, router in routers(module):
            shard_in_float32(router, meshes, offload=offload)
    for layer in decoder_layers(module):
        fully_shard(layer, mesh=meshes.shards, mp_policy=policy, offload_policy=home)
    fully_shard(module, mesh=meshes.shards, mp_policy=policy, offload_policy=home)
    return shared


def shard_in_float32(module: nn.Module, meshes: Meshes, *, offload: bool = False) -> None:
    """Split the parameters of a part that computes in float32 whatever is around it, before the whole is split."""
    policy = MixedPrecisionPolicy(cast_forward_inputs=False)
    fully_shard(module, mesh=meshes.shards, mp_policy=policy, offload_policy=_home(meshes, offload=offload))


def _home(meshes: Meshes, *, offload: bool = False) -> OffloadPolicy:
    # Pinned memory is of CUDA; without it the copies wait, and nothing else changes.
    pinned = meshes.shards.device_type == "cuda"
    return CPUOffloadPolicy(pin_memory=pinned) if offload or meshes.offload else OffloadPolicy()


def decoder_layers(module: nn.Module) -> list[nn.Module]:
    """The repeated blocks, by the class names that transformers says must not be split."""
    models = [part for part in module.modules() if isinstance(part, PreTrainedModel)]
    names = {name for model in models for name in model._no_split_modules or ()}
    return [part for part in module.modules() if type(part).__name__ in names]
