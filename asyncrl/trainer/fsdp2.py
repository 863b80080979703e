"""The engine of FSDP2: models of transformers, split by torch's own means over meshes of ranks."""

from collections.abc import Mapping
from pathlib import Path

from transformers import PreTrainedModel

from asyncrl.config.lora import LoraConfig
from asyncrl.trainer.adapter_files import read_adapter
from asyncrl.trainer.engine import ModelSettings, PolicyModels
from asyncrl.trainer.lora import Adapter, attach, hold_as_stored
from asyncrl.trainer.lora_weights import AdapterWeights
from asyncrl.trainer.model import load_language_model
from asyncrl.trainer.models import Arithmetic
from asyncrl.trainer.parallel import Ranks
from asyncrl.trainer.value_model import ValueModel, load_value_model
from asyncrl.trainer.weights import WholeWeights


class Fsdp2:
    """A row of engine.ENGINES."""

    def load_policy(
        self,
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
        """Read the model directory `path`, twice where the reference is a model of its own."""
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
            weights = AdapterWeights(model.module, adapters[0], travels_as=adapted.travels_as)
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

    def load_critic(
        self,
        path: Path,
        *,
        key: str,
        arithmetic: Arithmetic,
        ranks: Ranks,
        packing: bool | None,
        gradient_checkpointing: bool,
    ) -> ValueModel:
        """Read the trunk of the model directory `path`."""
        return load_value_model(
            path,
            key=key,
            arithmetic=arithmetic,
            device=ranks.device,
            meshes=ranks.meshes,
            packing=packing,
            gradient_checkpointing=gradient_checkpointing,
        )


ENGINE = Fsdp2()
