"""Reading the models of a policy: the trained one, whole or with an adapter, and the reference beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from transformers import PreTrainedModel

from asyncrl.config.lora import LoraConfig
from asyncrl.trainer.adapter_files import read_adapter
from asyncrl.trainer.lora import Adapter, attach, hold_as_stored
from asyncrl.trainer.lora_weights import AdapterWeights
from asyncrl.trainer.model import LanguageModel, load_language_model
from asyncrl.trainer.parallel import Ranks
from asyncrl.trainer.sharding import Arithmetic
from asyncrl.trainer.weights import Weights, WholeWeights


class ModelSettings(Protocol):
    """The part of ActorConfig that says how the model is run."""

    @property
    def packing(self) -> bool | None: ...
    @property
    def gradient_checkpointing(self) -> bool: ...
    @property
    def replay_experts(self) -> bool: ...


@dataclass(frozen=True)
class PolicyModels:
    """What a policy is made of.

    Attributes:
        reference: frozen model of the KL term, or None; `model` itself where that has an adapter to turn off.
        weights: what of `model` is trained.
    """

    model: LanguageModel
    reference: LanguageModel | None
    weights: Weights


def load_models(
    path: Path,
    *,
    arithmetic: Arithmetic,
    ranks: Ranks,
    wire_dtype: str | Mapping[str, str],
    settings: ModelSettings,
    needs_reference: bool,
    offload_reference: bool,
    lora: LoraConfig | None,
    seed: int,
) -> PolicyModels:
    """Read the model directory `path`; arguments and errors as of Policy.load."""
    adapters: list[Adapter] = []
    adapted = lora if lora is not None and lora.rank > 0 else None

    def adapt(module: PreTrainedModel) -> None:
        if adapted is not None:
            adapters.append(attach(module, adapted, seed=seed))
            hold_as_stored(module, arithmetic, wire_dtype)
            if adapted.path is not None:
                read_adapter(adapted.path, adapters[0])

    model = load_language_model(
        path,
        arithmetic=arithmetic,
        device=ranks.device,
        meshes=ranks.meshes,
        packing=settings.packing,
        gradient_checkpointing=settings.gradient_checkpointing,
        replays_experts=settings.replay_experts,
        prepare=adapt,
    )
    if adapted is not None:
        weights = AdapterWeights(model.module, adapters[0], travels_alone=adapted.sync == "adapter")
        return PolicyModels(model, model if needs_reference else None, weights)
    reference = None
    if needs_reference:
        reference = load_language_model(
            path,
            arithmetic=arithmetic,
            device=ranks.device,
            meshes=ranks.meshes,
            packing=model.is_packed,
            offload=offload_reference,
        )
        reference.module.requires_grad_(False)
    return PolicyModels(model, reference, WholeWeights(model.module))
