"""A low-rank adapter in a model (arXiv:2106.09685): peft's layers in the place of linear ones, everything else frozen.

y = W x + alpha / rank x B A x, with A of [rank, in] and B of [out, rank] in float32. What is trained is A and B.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from asyncrl.config.lora import LoraConfig
from asyncrl.errors import ConfigError
from asyncrl.trainer.models import Arithmetic
from asyncrl.trainer.routing import routers
from asyncrl.trainer.stored import stored_tensors
from weightsync.adapter_layout import DOWN, UP
from weightsync.low_rank import add_product
from weightsync.manifest import Manifest
from weightsync.shard import untrained_shards

NAME = "default"  # that peft gives to the one adapter of a model
FROZEN = ".base_layer."
"""What peft puts into the name of a layer's own weight and bias."""


class AdaptedLayer(Protocol):
    """The part of peft's Linear that is used here."""

    base_layer: nn.Linear
    lora_A: nn.ModuleDict
    lora_B: nn.ModuleDict


@dataclass(frozen=True)
class Adapter:
    """The adapter of a module.

    Attributes:
        layers: those that have a part of it, by name.
        rank, alpha: of every layer.
    """

    layers: Mapping[str, AdaptedLayer]
    rank: int
    alpha: float

    @property
    def scale(self) -> float:
        """Factor of B A."""
        return self.alpha / self.rank

    @property
    def targets(self) -> list[str]:
        """The last parts of the layers' names, each once."""
        return sorted({name.rpartition(".")[2] for name in self.layers})

    def parameters(self) -> dict[str, nn.Parameter]:
        """A and B of every layer as `<layer>.lora_A.weight` and `<layer>.lora_B.weight`; peft's names without its own
        prefix and without the name of the adapter."""
        found = {}
        for name, layer in self.layers.items():
            for part, modules in ((DOWN, layer.lora_A), (UP, layer.lora_B)):
                weight = modules[NAME].weight
                assert isinstance(weight, nn.Parameter)
                found[name + part] = weight
        return found

    @contextmanager
    def off(self) -> Iterator[None]:
        """The module without its adapter: bit for bit the frozen model."""
        # Not by peft's enable_adapters: it also says which parameters have a gradient, and a sharded module would
        # take that for the state in which it is first gathered.
        self._switch(is_off=True)
        try:
            yield
        finally:
            self._switch(is_off=False)

    def _switch(self, *, is_off: bool) -> None:
        for layer in self.layers.values():
            layer.__dict__["_disable_adapters"] = is_off


def attach(module: PreTrainedModel, config: LoraConfig, *, seed: int) -> Adapter:
    """Put a new adapter into a float32 module on the CPU and freeze what it had, in place; B is zero.

    Args:
        seed: of A, which is the same on every rank.
    Raises:
        ConfigError: peft is not installed, or lora.target_modules names what is no linear layer of the model.
    """
    try:
        import peft
    except ImportError as error:
        raise ConfigError(
            f"lora.rank = {config.rank} needs the package peft, which cannot be imported ({error}). Run `pip install "
            "'asyncrl[lora]'`, or set lora.rank = 0 to train every weight."
        ) from error
    names = target_layers(module, config.target_modules)
    made = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=names,
        init_lora_weights=True if config.init == "kaiming" else config.init,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(made, module, NAME)
    layers: dict[str, Any] = {name: module.get_submodule(name) for name in names}  # Any: peft ships no types
    for layer in layers.values():
        layer.cast_input_dtype_enabled = False  # autocast does it; peft would keep a float32 copy of every input
    adapter = Adapter(layers, config.rank, config.alpha)
    trained = set(adapter.parameters().values())
    for parameter in module.parameters():
        parameter.requires_grad_(parameter in trained)
    return adapter


def target_layers(module: PreTrainedModel, targets: str | Sequence[str]) -> list[str]:
    """Full names of the layers that `targets` means, in the module's order.

    Raises:
        ConfigError: a name that no layer has, or a layer that is not linear, or the head.
    """
    head = module.get_output_embeddings()
    linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear) and part is not head]
    if isinstance(targets, str):
        if not linear:
            raise ConfigError(
                f"lora.target_modules = {targets}, but {type(module).__name__} has no layer of type nn.Linear besides "
                "its head. Name another model, or set lora.rank = 0."
            )
        return linear
    meant = [name for name, _ in module.named_modules() if any(_ends_with(name, target) for target in targets)]
    unknown = [target for target in targets if not any(_ends_with(name, target) for name in meant)]
    other = next((name for name in meant if name not in linear), None)
    if not unknown and other is None:
        return meant
    known = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
    if unknown:
        raise ConfigError(
            f"lora.target_modules names {unknown[0]}, which no layer of this {type(module).__name__} is called. Its "
            f"linear layers are {known}."
        )
    part = module.get_submodule(other or "")
    what = "the head, whose weight may be the embedding's too" if part is head else f"a {type(part).__name__}"
    raise ConfigError(
        f"lora.target_modules reaches {other}, {what}; an adapter is put on linear layers only. Choose from {known}."
    )


def hold_as_stored(module: PreTrainedModel, arithmetic: Arithmetic, wire: str | Mapping[str, str]) -> None:
    """Hold frozen parameters in bfloat16 where the forward pass and the model's directory have them so: no bit is lost.

    Without a gradient nothing is ever added to them that would need float32. A stack of experts is held so if all of
    its experts are stored so; routers compute in float32.
    """
    if arithmetic != "bfloat16":
        return
    frozen = frozen_parameters(module)
    dtypes: dict[str, set[str | None]] = {}
    for tensor in stored_tensors(module, frozen):
        dtypes.setdefault(tensor.parameter, set()).add(wire if isinstance(wire, str) else wire.get(tensor.name))
    in_float32 = {parameter for _, router in routers(module) for parameter in router.parameters()}
    for name, parameter in frozen.items():
        if dtypes.get(name) == {"bfloat16"} and parameter not in in_float32:
            parameter.data = parameter.data.to(torch.bfloat16)


def frozen_parameters(module: PreTrainedModel) -> dict[str, nn.Parameter]:
    """What the model is without its adapter, tied ones once, by the names that it has without one."""
    return {name.replace(FROZEN, "."): p for name, p in module.named_parameters() if not p.requires_grad}


def merged_tensors(model_dir: Path, adapter: Mapping[str, Tensor], scale: float) -> Iterator[tuple[str, Tensor]]:
    """Name and value, float32, of each weight that an adapter changes; one after the other.

    Args:
        model_dir: what the adapter was trained on.
        adapter: whole A and B, named as Adapter.parameters names them.
    """
    manifest = Manifest.from_model_dir(model_dir)
    layers = {name.removesuffix(DOWN): tensor for name, tensor in adapter.items() if name.endswith(DOWN)}
    others = [spec.name for spec in manifest.tensors if spec.name.removesuffix(".weight") not in layers]
    for shard in untrained_shards(model_dir, manifest, others):
        layer = shard.name.removesuffix(".weight")
        yield shard.name, add_product(shard.tensor, scale * adapter[layer + UP].cpu(), layers[layer].cpu())


def _ends_with(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")
