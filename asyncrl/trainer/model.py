"""A Hugging Face causal language model as the trainer needs it: float32 masters, shards, logprobs of sampled tokens."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from asyncrl.errors import ConfigError
from asyncrl.trainer.meshes import Meshes
from asyncrl.trainer.micro_batch import MicroBatch
from asyncrl.trainer.models import Arithmetic, TokenOutputs
from asyncrl.trainer.packable import choose_packing
from asyncrl.trainer.routing import Routing, compute_in_float32
from asyncrl.trainer.sharding import shard
from asyncrl.trainer.vocabulary import SharedVocabulary, Vocabulary, WholeVocabulary


class LanguageModel:
    """The module with what surrounds a forward pass. Logits exist only at positions that predict a trained token."""

    def __init__(
        self,
        module: PreTrainedModel,
        arithmetic: Arithmetic,
        device: torch.device,
        *,
        is_packed: bool,
        replays_experts: bool = False,
        is_offloaded: bool = False,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        """Take a module as it is.

        Args:
            is_packed: it reads packed rows, and no padded ones.
            replays_experts: tokens go to the experts that the server recorded, where it did.
            is_offloaded: the weights are on the CPU but within `at_hand`.
            vocabulary: which of its tokens the logits are of; None: all.
        """
        self.module, self.device, self.is_packed = module, device, is_packed
        self._is_offloaded, self._vocabulary = is_offloaded, vocabulary or WholeVocabulary()
        self._routing = Routing(module) if replays_experts else None
        self._arithmetic = arithmetic
        self._predictors: Tensor | None = None
        head = module.get_output_embeddings()
        assert isinstance(head, nn.Module)
        # Before the hook that makes slices of the input, where ranks share the head.
        head.register_forward_pre_hook(self._keep_predictors, prepend=True)

    def outputs(
        self,
        micro: MicroBatch,
        *,
        temperature: float,
        entropy_has_gradient: bool,
        measure: Callable[[Tensor], Tensor] | None = None,
    ) -> TokenOutputs:
        """Logprobs, with gradient where autograd is on, and entropies of the trained tokens at `temperature`.

        Args:
            measure: what else to make of the [M, V] logits, divided by the temperature; [M].
        """
        logits_MV = self.logits(micro)
        source_MV = logits_MV if entropy_has_gradient else logits_MV.detach()
        found = [
            self._vocabulary.logprobs(logits_MV, micro.own(micro.labels_N), temperature=temperature),
            self._vocabulary.entropies(source_MV, temperature=temperature),
        ]
        if measure is not None:
            found.append(measure(self._vocabulary.whole(logits_MV) / temperature))
        logprobs_N, entropies_N, *measured_N = micro.whole(torch.stack(found)).unbind()
        return TokenOutputs(
            logprobs_N,
            entropies_N if entropy_has_gradient else entropies_N.detach(),
            measured_N[0] if measured_N else None,
        )

    def measured(self, micro: MicroBatch, measure: Callable[[Tensor], Tensor], *, temperature: float) -> Tensor:
        """[N] float32, what `measure` makes of the [M, V] logits, divided by the temperature."""
        logits_MV = self._vocabulary.whole(self.logits(micro))
        return micro.whole(measure(logits_MV / temperature).float().unsqueeze(0))[0]

    def logits(self, micro: MicroBatch) -> Tensor:
        """[M, V] that predict the trained tokens, those of them that this rank predicts; of its part of the vocabulary
        where ranks share it."""
        assert (micro.inputs.documents is not None) == self.is_packed
        self._predictors = micro.predictors_M
        if self._routing is not None:
            self._routing.lead(micro.inputs.experts_MLK)
        try:
            with autocast(self.device, self._arithmetic):
                logits_MV: Tensor = self.module(**micro.inputs.arguments()).logits[0]
        finally:
            self._predictors = None
        return logits_MV

    @contextmanager
    def at_hand(self) -> Iterator[None]:
        """Have the weights on the device; those that are offloaded go back to the CPU afterwards."""
        if not self._is_offloaded:
            yield
            return
        self.module.to(self.device)
        try:
            yield
        finally:
            self.module.to("cpu")

    def _keep_predictors(self, head: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        # Before the head rather than after it: the logits of a prompt would be the largest tensor of the step.
        del head
        assert self._predictors is not None
        hidden_NH = args[0].flatten(0, 1).index_select(0, self._predictors)
        return (hidden_NH.unsqueeze(0), *args[1:])


def load_language_model(
    path: Path,
    *,
    arithmetic: Arithmetic,
    device: torch.device,
    meshes: Meshes | None,
    packing: bool | None = None,
    gradient_checkpointing: bool = False,
    replays_experts: bool = False,
    offload: bool = False,
    prepare: Callable[[PreTrainedModel], None] | None = None,
) -> LanguageModel:
    """Read a model directory into float32 master weights, on every rank its shard of them.

    Args:
        path: directory in Hugging Face form.
        arithmetic: type of forward and backward; masters stay float32.
        meshes: the ranks to split it over, or None.
        packing: read packed rows (True) or padded ones; None: packed ones where the model can.
        gradient_checkpointing: recompute activations in the backward pass.
        replays_experts: send tokens to the experts that the server recorded, where it did.
        offload: keep the weights in CPU memory between passes; those of ranks that share them come layer by layer.
        prepare: what to do to the module before it is split and moved; it may put other layers in.
    Raises:
        ConfigError: the directory holds no causal language model that transformers can read, or one that cannot read
            packed rows and should.
    """
    module = read_model(path, gradient_checkpointing=gradient_checkpointing)
    is_packed = choose_packing(module, packing, key="actor.packing", meshes=meshes)
    if prepare is not None:
        prepare(module)
    vocabulary: Vocabulary = WholeVocabulary()
    if meshes is not None:
        # Moves layer by layer, so that no device ever holds the whole model.
        shared = shard(module, meshes, arithmetic, offload=offload)
        if meshes.tp is not None and module.get_output_embeddings() in shared:
            vocabulary = SharedVocabulary(meshes.tp.get_group())
    elif not offload:
        module.to(device)
    return LanguageModel(
        module,
        arithmetic,
        device,
        is_packed=is_packed,
        replays_experts=replays_experts,
        is_offloaded=offload and meshes is None,
        vocabulary=vocabulary,
    )


def read_model(path: Path, *, key: str = "model.path", gradient_checkpointing: bool = False) -> PreTrainedModel:
    """The causal language model of a directory on the CPU: float32, in training mode, without dropout.

    Args:
        key: of the configuration that names the directory, for errors.
    Raises:
        ConfigError: the directory holds none that transformers can read.
    """
    transformers_logging.disable_progress_bar()
    if not (path / "config.json").is_file():
        raise ConfigError(
            f"{key} = {path} holds no config.json, so there is no model to train. Run `asyncrl starter` if the "
            "configuration has a `starter:` section, or name a directory in Hugging Face form."
        )
    try:
        module = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"{key} = {path} cannot be read as a causal language model: {error}. Complete the directory, or name "
            "another."
        ) from error
    assert isinstance(module, PreTrainedModel)
    without_dropout(module)
    compute_in_float32(module)
    module.train()
    if gradient_checkpointing:
        recompute_activations(module)
    return module


def autocast(device: torch.device, arithmetic: Arithmetic) -> AbstractContextManager[object]:
    """What a forward pass runs in."""
    return torch.autocast(device.type, torch.bfloat16) if arithmetic == "bfloat16" else nullcontext()


def without_dropout(module: nn.Module) -> None:
    """Turn dropout off: the policy that is trained must be the policy that the servers sample from."""
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        if isinstance(getattr(part, "attention_dropout", None), float):
            part.__dict__["attention_dropout"] = 0.0  # a plain number, which Module.__setattr__ is not typed for


def recompute_activations(module: PreTrainedModel) -> None:
    """Less memory, more time; transformers renamed the switch and its argument in 5.24."""
    switch = getattr(module, "activation_checkpointing_enable", None) or module.gradient_checkpointing_enable
    switch({"use_reentrant": False})
