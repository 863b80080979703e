"""The policy and its optimizer: one call takes a step's batch and changes the weights, the same for any split of it."""

import logging
from collections.abc import Mapping, Sequence
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
from asyncrl.trainer.batch import Batch, Ints, MicroBatch, empty_micro_batch, micro_batches
from asyncrl.trainer.masked import count_rejected
from asyncrl.trainer.mismatch import measure_mismatch
from asyncrl.trainer.model import Arithmetic, LanguageModel, load_language_model
from asyncrl.trainer.parallel import Ranks
from asyncrl.trainer.tally import Tally
from weightsync.shard import LocalShard, shards_of

log = logging.getLogger(__name__)

MAX_SKIPPED = 3
"""Optimizer steps in a row without a finite gradient norm after which the run stops: the weights no longer recover."""


class PolicySettings(optim.Course, Protocol):
    """The part of ActorConfig that the policy reads."""

    @property
    def betas(self) -> tuple[float, float]: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def grad_clip(self) -> float: ...
    @property
    def ppo_epochs(self) -> int: ...
    @property
    def ppo_mini_batches(self) -> int: ...
    @property
    def micro_batch_tokens(self) -> int: ...
    @property
    def gradient_checkpointing(self) -> bool: ...


class Policy:
    """The trained model with its optimizer, on every rank its shard of both.

    Attributes:
        optimizer_steps: how many were taken; with the weights and the moments it is all that a resume needs.
    """

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
        self._total_steps = steps * settings.ppo_epochs * settings.ppo_mini_batches
        self.optimizer = optim.adamw(self.parameters(), settings.betas, settings.weight_decay)
        self.optimizer_steps = 0
        self._skipped = 0

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
        denominators = self._count(batch, rows)
        if denominators.tokens == 0:
            # Without a gradient AdamW would still move the weights, by its momentum alone.
            tally.mean("actor/steps_without_tokens", 1.0, 1.0)
            return
        num_nonfinite = torch.zeros((), dtype=torch.float64, device=self.model.device)
        for micro in self._micro_batches(batch, rows):
            num_nonfinite += self._backward(micro, proximal_N, denominators, tally, first_pass=first_pass)
        nonfinite = float(self.ranks.total(num_nonfinite.reshape(1)))
        try:
            require_finite(nonfinite, denominators.tokens, limit=self.algorithm.max_nonfinite_frac)
        except NumericsError:
            self.optimizer.zero_grad()
            raise
        self._update(tally)

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
        proximal_RS = None if proximal_N is None else micro.grid(self._pick(proximal_N, micro))
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

    def _update(self, tally: Tally) -> None:
        settings, rank0 = self._settings, float(self.ranks.rank == 0)
        lr = optim.learning_rate(settings, self.optimizer_steps + 1, self._total_steps)
        norm = optim.clip_gradients(self.parameters(), settings.grad_clip)
        finite = torch.isfinite(torch.tensor(norm)).item()
        tally.mean("actor/skipped_updates", 0.0 if finite else rank0, rank0)
        if finite:
            optim.set_learning_rate(self.optimizer, lr)
            self.optimizer.step()
            self.optimizer_steps += 1
            self._skipped = 0
            tally.mean("actor/grad_norm", norm * rank0, rank0)
            tally.mean("actor/lr", lr * rank0, rank0)
        self.optimizer.zero_grad()
        if finite:
            return
        self._skipped += 1
        log.warning("gradient norm is %s: optimizer step skipped (%d of %d)", norm, self._skipped, MAX_SKIPPED)
        if self._skipped >= MAX_SKIPPED:
            raise NumericsError(
                f"The gradient norm was not finite ({norm}) in {self._skipped} optimizer steps in a row; each was "
                "skipped, so the weights are still those of the last good one. Lower actor.lr, set model.dtype: "
                "float32, or go back to an older checkpoint."
            )

    def _count(self, batch: Batch, rows: Ints) -> Denominators:
        """Tokens and rows of the whole mini-batch, on all ranks."""
        tokens = int((batch.starts_R[rows + 1] - batch.starts_R[rows]).sum())
        counts = self.ranks.total(torch.tensor([tokens, len(rows)], dtype=torch.float64))
        return Denominators(int(counts[0]), int(counts[1]), self.ranks.world)

    def _micro_batches(self, batch: Batch, rows: Ints) -> Sequence[MicroBatch]:
        """This rank's micro-batches, as many as any rank has."""
        device = self.model.device
        own = list(micro_batches(batch, rows, self._settings.micro_batch_tokens, device))
        return own + [empty_micro_batch(device)] * (self.ranks.largest(len(own)) - len(own))

    @torch.no_grad()
    def _logprobs(self, batch: Batch) -> Tensor:
        """[N] logprobs of the trained tokens under the weights as they are now."""
        logprobs_N = torch.zeros(batch.num_trained, device=self.model.device)
        for rows in batch.rows_by_mini_batch:
            for micro in self._micro_batches(batch, rows):
                outputs = self.model.outputs(micro, temperature=self._temperature, entropy_has_gradient=False)
                index = torch.from_numpy(micro.index_N).to(self.model.device)
                logprobs_N[index] = outputs.logprobs_N[: len(index)]
        return logprobs_N

    @torch.no_grad()
    def _reference_logprobs(self, micro: MicroBatch) -> Tensor | None:
        if self._reference is None:
            return None
        outputs = self._reference.outputs(micro, temperature=self._temperature, entropy_has_gradient=False)
        return micro.grid(outputs.logprobs_N)

    def _pick(self, values_N: Tensor, micro: MicroBatch) -> Tensor:
        index = torch.from_numpy(micro.index_N).to(values_N.device)
        picked = values_N[index]
        return picked if len(picked) else values_N.new_zeros(len(micro.slots_N))
