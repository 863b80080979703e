"""The policy and its optimizer: one call takes a step's batch and changes the weights, the same for any split of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from asyncrl.algorithms import Algorithm
from asyncrl.algorithms.aggregation import Denominators
from asyncrl.algorithms.base import require_finite
from asyncrl.algorithms.objective import policy_objective
from asyncrl.errors import NumericsError
from asyncrl.trainer import optimizer as optim
from asyncrl.trainer.batch import Batch, Ints, MicroBatch
from asyncrl.trainer.masked import count_rejected
from asyncrl.trainer.mismatch import measure_mismatch
from asyncrl.trainer.model import Arithmetic, LanguageModel, load_language_model
from asyncrl.trainer.parallel import Ranks
from asyncrl.trainer.passes import Passes, pick
from asyncrl.trainer.tally import Tally
from weightsync.shard import LocalShard, shards_of


class PolicySettings(optim.Settings, Protocol):
    """The part of ActorConfig that the policy reads."""

    @property
    def ppo_epochs(self) -> int: ...
    @property
    def ppo_mini_batches(self) -> int: ...
    @property
    def micro_batch_tokens(self) -> int: ...
    @property
    def gradient_checkpointing(self) -> bool: ...


class Policy:
    """The trained model with its optimizer, on every rank its shard of both."""

    def __init__(
        self,
        model: LanguageModel,
        reference: LanguageModel | None,
        algorithm: Algorithm,
        settings: PolicySettings,
        *,
        temperature: float,
        steps: int,
        wire_dtype: str | Mapping[str, str],
        ranks: Ranks,
    ) -> None:
        """Take a model as it is.

        Args:
            reference: frozen model of the KL term, or None.
            temperature: of sampling; logprobs are taken at it.
            steps: training steps of the whole run, for the course of the learning rate.
            wire_dtype: type of the weights that servers hold: one of all floats, or by tensor.
        """
        self.model, self.algorithm, self.ranks = model, algorithm, ranks
        self._reference, self._settings, self._temperature = reference, settings, temperature
        self._wire_dtype = wire_dtype
        total_steps = steps * settings.ppo_epochs * settings.ppo_mini_batches
        self.optimizer = optim.GuardedAdamW(self.parameters(), settings, section="actor", total_steps=total_steps)
        self._passes = Passes(ranks, settings.micro_batch_tokens, model.device)

    @classmethod
    def load(
        cls,
        path: Path,
        algorithm: Algorithm,
        settings: PolicySettings,
        *,
        arithmetic: Arithmetic,
        temperature: float,
        steps: int,
        wire_dtype: str | Mapping[str, str],
        ranks: Ranks,
    ) -> "Policy":
        """Read the model directory `path`, twice if the algorithm has a KL term.

        Raises:
            ConfigError: the directory holds no causal language model that transformers can read.
        """
        model = load_language_model(
            path,
            arithmetic=arithmetic,
            device=ranks.device,
            mesh=ranks.mesh,
            gradient_checkpointing=settings.gradient_checkpointing,
        )
        reference = None
        if algorithm.kl_coef > 0:
            reference = load_language_model(path, arithmetic=arithmetic, device=ranks.device, mesh=ranks.mesh)
            reference.module.requires_grad_(False)
        return cls(
            model,
            reference,
            algorithm,
            settings,
            temperature=temperature,
            steps=steps,
            wire_dtype=wire_dtype,
            ranks=ranks,
        )

    @property
    def optimizer_steps(self) -> int:
        """How many were taken."""
        return self.optimizer.steps

    def parameters(self) -> list[nn.Parameter]:
        """Of the model; tied ones once."""
        return list(self.model.module.parameters())

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """By the names that the checkpoint of the model has; tied ones once."""
        return dict(self.model.module.named_parameters())

    def shards(self) -> list[LocalShard]:
        """This rank's part of the weights, as servers will hold them: parameters, and buffers that a checkpoint has."""
        module, wire = self.model.module, self._wire_dtype
        buffers = [] if isinstance(wire, str) else [(n, b) for n, b in module.named_buffers() if n in wire]
        return shards_of([*module.named_parameters(), *buffers], wire)

    def step(self, batch: Batch) -> Tally:
        """Train one batch: ppo_epochs passes of ppo_mini_batches optimizer steps. Every rank calls it together.

        Returns:
            This rank's share of the metrics under actor/, rollout_corr/ and training/off_policy/.
        Raises:
            NumericsError: more tokens than allowed are not finite, or the gradient stays so; the weights are as they
                were before the optimizer step.
        """
        tally = Tally()
        passes = self._settings.ppo_epochs
        proximal_N = None
        if passes * len(batch.rows_by_mini_batch) > 1:
            proximal_N = self._logprobs(batch)
        for epoch in range(passes):
            for rows in batch.rows_by_mini_batch:
                self._optimizer_step(batch, rows, proximal_N, tally, first_pass=epoch == 0)
        return tally

    def _optimizer_step(
        self, batch: Batch, rows: Ints, proximal_N: Tensor | None, tally: Tally, *, first_pass: bool
    ) -> None:
        denominators = self._passes.count(batch, rows)
        if denominators.tokens == 0:
            # Without a gradient AdamW would still move the weights, by its momentum alone.
            tally.mean("actor/steps_without_tokens", 1.0, 1.0)
            return
        num_nonfinite = torch.zeros((), dtype=torch.float64, device=self.model.device)
        for micro in self._passes.micro_batches(batch, rows):
            num_nonfinite += self._backward(micro, proximal_N, denominators, tally, first_pass=first_pass)
        nonfinite = float(self.ranks.total(num_nonfinite.reshape(1)))
        try:
            require_finite(nonfinite, denominators.tokens, limit=self.algorithm.max_nonfinite_frac)
        except NumericsError:
            self.optimizer.discard()
            raise
        self.optimizer.step(tally, reports=self.ranks.rank == 0)

    def _backward(
        self,
        micro: MicroBatch,
        proximal_N: Tensor | None,
        denominators: Denominators,
        tally: Tally,
        *,
        first_pass: bool,
    ) -> Tensor:
        """Add a micro-batch's gradient; returns the number of its tokens that are not finite."""
        outputs = self.model.outputs(
            micro, temperature=self._temperature, entropy_has_gradient=self.algorithm.entropy_coef != 0
        )
        logprobs_RS = micro.grid(outputs.logprobs_N)
        proximal_RS = None if proximal_N is None else micro.grid(pick(proximal_N, micro))
        objective = policy_objective(
            self.algorithm,
            logprobs_RS,
            micro.sampler_RS,
            micro.advantages_RS,
            micro.mask_RS,
            denominators,
            proximal_BT=proximal_RS,
            reference_BT=self._reference_logprobs(micro),
            entropy_BT=micro.grid(outputs.entropies_N),
        )
        objective.loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
        tally.take(objective.metrics, objective.extremes)
        if first_pass:
            # Against the weights at the start of the step: later passes would measure their own changes.
            before_RS = logprobs_RS.detach() if proximal_RS is None else proximal_RS
            measure_mismatch(micro, before_RS, tally)
            count_rejected(objective.correction, micro.slots_N, micro.source_N, tally, micro.sources)
        return objective.metrics["nonfinite_tokens"][0]

    def _logprobs(self, batch: Batch) -> Tensor:
        """[N] logprobs of the trained tokens under the weights as they are now."""

        def logprobs(micro: MicroBatch) -> Tensor:
            return self.model.outputs(micro, temperature=self._temperature, entropy_has_gradient=False).logprobs_N

        return self._passes.collect(batch, logprobs)

    @torch.no_grad()
    def _reference_logprobs(self, micro: MicroBatch) -> Tensor | None:
        if self._reference is None:
            return None
        outputs = self._reference.outputs(micro, temperature=self._temperature, entropy_has_gradient=False)
        return micro.grid(outputs.logprobs_N)
