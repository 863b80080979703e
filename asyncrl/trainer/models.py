"""What the trainer asks of the models that an engine runs."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from asyncrl.trainer.micro_batch import Inputs, MicroBatch

Arithmetic = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class TokenOutputs:
    """What the model says about the N trained tokens of a micro-batch: logprobs and entropies, [N] float32, nats, and
    what else was measured."""

    logprobs_N: Tensor
    entropies_N: Tensor
    measured_N: Tensor | None = None


class Model(Protocol):
    """A language model that is run on micro-batches. Every method is collective."""

    @property
    def module(self) -> nn.Module:
        """What is run, on this rank."""
        ...

    @property
    def device(self) -> torch.device:
        """Where micro-batches have to be."""
        ...

    @property
    def is_packed(self) -> bool:
        """Whether it reads packed rows, and no padded ones; else the other way round."""
        ...

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
        ...

    def measured(self, micro: MicroBatch, measure: Callable[[Tensor], Tensor], *, temperature: float) -> Tensor:
        """[N] float32, what `measure` makes of the [M, V] logits, divided by the temperature."""
        ...

    def at_hand(self) -> AbstractContextManager[None]:
        """Have the weights on the device; those that are offloaded go back to the CPU afterwards."""
        ...


class ValueModule(Protocol):
    """A model that says of tokens what is still to come. Calling it is collective."""

    @property
    def is_packed(self) -> bool:
        """As of Model."""
        ...

    def __call__(self, inputs: Inputs, predictors_M: Tensor) -> Tensor:
        """[M, 1] float32, in units of reward, with gradient where autograd is on.

        Args:
            predictors_M: int64, place of the token before each trained token, flattened.
        """
        ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """By their names in a checkpoint; tied ones once."""
        ...
