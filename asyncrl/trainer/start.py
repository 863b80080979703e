"""What the models say of a batch before a step changes them."""

from collections.abc import Callable
from functools import cached_property
from typing import Protocol

from torch import Tensor

from asyncrl.algorithms.logprobs import sum_pi_squared
from asyncrl.metrics.phases import phase
from asyncrl.trainer.batch import Batch
from asyncrl.trainer.joined import Joined
from asyncrl.trainer.teacher_scores import teacher_logprobs, teacher_top


class Models(Protocol):
    """What is asked about a batch: the policy and the frozen reference beside it. Its methods are collective."""

    def logprobs(self, batch: Batch) -> Tensor:
        """[N] float32 nats, of the trained tokens under the weights as they are now."""
        ...

    def reference_logprobs(self, batch: Batch) -> Tensor:
        """[N] float32 nats, under the reference's."""
        ...

    def measured(self, batch: Batch, measure: Callable[[Tensor], Tensor]) -> Tensor:
        """[N], what `measure` makes of the [N, V] logits, divided by the temperature, that predict the tokens."""
        ...


class Values(Protocol):
    """What a critic is asked about a batch; collective."""

    def values(self, batch: Batch) -> Tensor:
        """[N] float32, what is still to come before each trained token, under the weights as they are now."""
        ...


class StartOfStep:
    """Facts about the trained tokens of a batch under the weights at the start of a step, without gradient.

    Each is a pass over the batch that runs once, when it is first asked for. All ranks ask for the same ones in the
    same order, for what to ask for depends on the configuration alone.
    """

    def __init__(self, batch: Batch, models: Models, critic: Values | None = None) -> None:
        self.batch, self.joined = batch, Joined.of(batch)
        self._models, self._critic = models, critic

    @cached_property
    @phase("old_log_prob")
    def logprobs_N(self) -> Tensor:
        """[N] float32, nats."""
        return self._models.logprobs(self.batch)

    @cached_property
    @phase("ref")
    def reference_N(self) -> Tensor:
        """[N] float32, nats, of the frozen reference model."""
        return self._models.reference_logprobs(self.batch)

    @cached_property
    @phase("values")
    def values_N(self) -> Tensor:
        """[N] float32, of the critic, in units of reward."""
        assert self._critic is not None, "columns.needs_critic said that no critic is needed"
        return self._critic.values(self.batch)

    @cached_property
    @phase("old_log_prob")
    def sum_pi_squared_N(self) -> Tensor:
        """[N] float32, sum over the vocabulary of the squared probabilities."""
        return self._models.measured(self.batch, sum_pi_squared)

    @cached_property
    def teacher_N(self) -> Tensor:
        """[N] float32, nats, of the first teacher that scored the token's row; NaN without one. No pass of a model."""
        return teacher_logprobs(self.batch)

    @cached_property
    def teacher_top_NK(self) -> tuple[Tensor, Tensor]:
        """Logprobs and ids of the same teacher's likeliest tokens; see teacher_scores.teacher_top."""
        return teacher_top(self.batch)
