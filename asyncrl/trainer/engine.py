"""The seam to a training engine: who reads models, splits them over ranks and runs them.

    engine          file             models
    fsdp2           fsdp2.py         causal language models of transformers: FSDP2, tensor and context parallel

What an engine gives stays torch's: parameters are tensors or DTensors with gradients by autograd, of which AdamW, the
clipping, checkpoints, exports and weight sync need to know nothing but their names. Nothing above this file imports an
engine; tests/architecture/test_engine_seam.py holds it to that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from asyncrl.config.lora import LoraConfig
from asyncrl.trainer.models import Arithmetic, Model, ValueModule
from asyncrl.trainer.parallel import Ranks
from asyncrl.trainer.weights import Weights

ENGINES = {"fsdp2": "asyncrl.trainer.fsdp2"}
"""trainer.engine -> the module that has it as ENGINE; imported when it is asked for."""


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
        weights: what of `model` is trained, and what servers get of it.
    """

    model: Model
    reference: Model | None
    weights: Weights


class Engine(Protocol):
    """Reads model directories in Hugging Face form into float32 masters, on every rank its part of them.

    Its methods are collective.
    """

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
        """The model that is trained and the one that it is compared with; arguments and errors as of Policy.load."""
        ...

    def load_critic(
        self,
        path: Path,
        *,
        key: str,
        arithmetic: Arithmetic,
        ranks: Ranks,
        packing: bool | None,
        gradient_checkpointing: bool,
    ) -> ValueModule:
        """A critic on the trunk of a model, whose values are zero; arguments and errors as of Critic.load.

        Args:
            key: of the configuration that names the directory, for errors.
        """
        ...


def open_engine(name: str) -> Engine:
    """The engine of that name, a row of ENGINES."""
    return cast(Engine, import_module(ENGINES[name]).ENGINE)
