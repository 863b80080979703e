"""The policy and its optimizer: one call takes a step's batch and changes the weights, the same for any split of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from asyncrl.algorithms import Algorithm
from asyncrl.algorithms.aggregation import Denominators
from asyncrl.algorithms.corrections import mean_weight_of
from asyncrl.algorithms.objective import policy_objective
from asyncrl.config.lora import LoraConfig
from asyncrl.errors import NumericsError
from asyncrl.trainer import optimizer as optim
from asyncrl.trainer.batch import Batch, Ints
from asyncrl.trainer.columns import needs_reference
from asyncrl.trainer.engine import ModelSettings, PolicyModels, open_engine
from asyncrl.trainer.flops import ModelFlops, count_flops, count_saved
from asyncrl.trainer.masked import count_rejected
from asyncrl.trainer.micro_batch import MicroBatch
from asyncrl.trainer.mismatch import measure_cuts, measure_mismatch
from asyncrl.trainer.models import Arithmetic
from asyncrl.trainer.nonfinite import NonFiniteTokens
from asyncrl.trainer.parallel import Ranks
from asyncrl.trainer.passes import Passes, pick
from asyncrl.trainer.selection import select
from asyncrl.trainer.start import StartOfStep
from asyncrl.trainer.tally import Tally
from asyncrl.trainer.teacher_scores import distance_to_top, looks_at_top
from weightsync.shard import LocalShard


class PolicySettings(optim.Settings, ModelSettings, Protocol):
    """The part of ActorConfig that the policy reads."""

    @property
    def ppo_epochs(self) -> int: ...
    @property
    def ppo_mini_batches(self) -> int: ...
    @property
    def micro_batch_tokens(self) -> int: ...
    @property
    def share_prompts(self) -> bool: ...


@dataclass(frozen=True)
class TokenFacts:
    """What is known of each trained token of a batch while its steps are taken; [N] float32 each."""

    advantages_N: Tensor
    proximal_N: Tensor | None
    """Logprobs at the start of the step; None: the step is the only one, so they are the current ones."""
    reference_N: Tensor | None
    teacher_N: Tensor | None
    """NaN where no teacher scored the token."""
    teacher_top_NK: tuple[Tensor, Tensor] | None
    """Logprobs and ids of a teacher's likeliest tokens; None: the algorithm does not look at them."""


@dataclass(frozen=True)
class MiniBatchFacts:
    """What is known of a mini-batch as a whole before its optimizer step."""

    selected_N: Tensor | None
    """[N] bool, what the algorithm's selection picked."""
    mean_weight: Tensor | None
    """Scalar that the importance weights are divided by."""


class Policy:
    """The trained model with its optimizer, on every rank its shard of both."""

    def __init__(
        self,
        models: PolicyModels,
        algorithm: Algorithm,
        settings: PolicySettings,
        *,
        temperature: float,
        steps: int,
        wire_dtype: str | Mapping[str, str],
        ranks: Ranks,
    ) -> None:
        """Take the models as they are.

        Args:
            temperature: of sampling; logprobs are taken at it.
            steps: training steps of the whole run, for the course of the learning rate.
            wire_dtype: type of the weights that servers hold: one of all floats, or by tensor.
        """
        self.model, self.weights, self.algorithm, self.ranks = models.model, models.weights, algorithm, ranks
        self._reference, self._settings, self._temperature = models.reference, settings, temperature
        self._wire_dtype, self._flops = wire_dtype, ModelFlops.of(models.model.module)
        total_steps = steps * settings.ppo_epochs * settings.ppo_mini_batches
        self.optimizer = optim.GuardedAdamW(
            self.parameters(), settings, section="actor", total_steps=total_steps, ranks=ranks
        )
        model, tokens, shares = models.model, settings.micro_batch_tokens, settings.share_prompts
        self._passes = Passes(ranks, tokens, model.device, is_packed=model.is_packed, shares_prompts=shares)

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
        offload_reference: bool = False,
        lora: LoraConfig | None = None,
        seed: int = 0,
        engine: str = "fsdp2",
    ) -> "Policy":
        """Read the model directory `path`, twice if the algorithm compares with a reference model of its own.

        Args:
            offload_reference: keep the reference model in CPU memory between its passes.
            lora: an adapter to train in place of all weights, if its rank is above 0; the reference is then the model
                without it.
            seed: of a new adapter.
            engine: row of engine.ENGINES.
        Raises:
            ConfigError: the directory holds no causal language model that transformers can read, or one that cannot
                read packed rows and should; or the adapter cannot be made or read.
        """
        models = open_engine(engine).load_policy(
            path,
            arithmetic=arithmetic,
            ranks=ranks,
            wire_dtype=wire_dtype,
            settings=settings,
            needs_reference=needs_reference(algorithm),
            offload_reference=offload_reference,
            lora=lora,
            seed=seed,
        )
        return cls(
            models,
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
        """Those that are trained; tied ones once."""
        return list(self.named_parameters().values())

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Those that are trained, by their names in a checkpoint; tied ones once."""
        return self.weights.trained()

    def shards(self) -> list[LocalShard]:
        """This rank's part of the weights, as servers will hold them. A collective where an adapter is sharded."""
        return self.weights.shards(self._wire_dtype)

    def step(self, start: StartOfStep, advantages_N: Tensor, tally: Tally) -> None:
        """Train one batch: ppo_epochs passes of ppo_mini_batches optimizer steps. Every rank calls it together.

        Args:
            start: the batch, and what is known of it before the first of these steps.
            advantages_N: [N] float32, of the trained tokens.
            tally: gets this rank's share of the metrics under actor/, rollout_corr/ and training/off_policy/.
        Raises:
            NumericsError: more tokens than allowed are not finite, or the gradient stays so; the weights are as they
                were before the optimizer step.
        """
        passes, parts = self._settings.ppo_epochs, start.batch.rows_by_mini_batch
        looks_ahead = self.algorithm.selection is not None or self.algorithm.normalize_weights
        known = TokenFacts(
            advantages_N.to(self.model.device),
            proximal_N=start.logprobs_N if passes * len(parts) > 1 or looks_ahead else None,
            reference_N=None if self._reference is None else start.reference_N,
            teacher_N=start.teacher_N.to(self.model.device) if self.algorithm.distill_coef > 0 else None,
            teacher_top_NK=start.teacher_top_NK if looks_at_top(self.algorithm) else None,
        )
        for epoch in range(passes):
            for number, rows in enumerate(parts):
                whole = self._mini_batch_facts(start.batch, rows, known, is_first=epoch == number == 0)
                self._optimizer_step(start.batch, rows, known, whole, tally, first_pass=epoch == 0)
        count_flops(self._flops, start.batch, tally, self._settings)

    def logprobs(self, batch: Batch) -> Tensor:
        """[N] float32 nats, of the trained tokens under the weights as they are now."""
        return self._passes.collect(batch, self._logprobs)

    def reference_logprobs(self, batch: Batch) -> Tensor:
        """[N] float32 nats, under the frozen reference model."""
        reference = self._reference
        assert reference is not None, "columns.needs_reference said that no reference is needed"

        def logprobs(micro: MicroBatch) -> Tensor:
            return reference.outputs(micro, temperature=self._temperature, entropy_has_gradient=False).logprobs_N

        with self.weights.reference(reference):
            return self._passes.collect(batch, logprobs)

    def measured(self, batch: Batch, measure: Callable[[Tensor], Tensor]) -> Tensor:
        """[N], what `measure` makes of the [N, V] logits, divided by the temperature, that predict the tokens."""
        temperature = self._temperature
        return self._passes.collect(batch, lambda micro: self.model.measured(micro, measure, temperature=temperature))

    def _mini_batch_facts(self, batch: Batch, rows: Ints, known: TokenFacts, *, is_first: bool) -> MiniBatchFacts:
        """What the algorithm asks about a mini-batch as a whole, before its first micro-batch."""
        selection, selected_N, mean_weight = self.algorithm.selection, None, None
        proximal_N = known.proximal_N
        if selection is not None and proximal_N is not None:
            now_N = proximal_N if is_first else self._passes.collect(batch, self._logprobs, [rows])
            selected_N = select(selection.rule, batch, rows, now_N, proximal_N, known.advantages_N, self.ranks)
        if self.algorithm.normalize_weights and proximal_N is not None and self.algorithm.correction is not None:
            micros = self._passes.micro_batches(batch, rows)
            grids = [(micro.grid(pick(proximal_N, micro)), micro.sampler_RS, micro.mask_RS) for micro in micros]
            mean_weight = mean_weight_of(self.algorithm.correction, grids, self.ranks.total)
        return MiniBatchFacts(selected_N, mean_weight)

    def _optimizer_step(
        self, batch: Batch, rows: Ints, known: TokenFacts, whole: MiniBatchFacts, tally: Tally, *, first_pass: bool
    ) -> None:
        denominators = self._passes.count(batch, rows)
        if denominators.tokens == 0:
            # Without a gradient AdamW would still move the weights, by its momentum alone.
            tally.mean("actor/steps_without_tokens", 1.0, 1.0)
            return
        nonfinite = NonFiniteTokens(batch)
        for micro in self._passes.micro_batches(batch, rows):
            nonfinite.add(micro, self._backward(micro, known, whole, denominators, tally, first_pass=first_pass))
            count_saved(self._flops, micro.inputs.saved, tally, self._settings)
        try:
            nonfinite.require_few(self.ranks, denominators.tokens, limit=self.algorithm.max_nonfinite_frac)
        except NumericsError:
            self.optimizer.discard()
            raise
        self.optimizer.step(tally, reports=self.ranks.rank == 0)

    def _backward(
        self,
        micro: MicroBatch,
        known: TokenFacts,
        whole: MiniBatchFacts,
        denominators: Denominators,
        tally: Tally,
        *,
        first_pass: bool,
    ) -> Tensor:
        """Add a micro-batch's gradient; returns which of its tokens are not finite, [R, S] bool."""
        algorithm = self.algorithm
        top = known.teacher_top_NK
        outputs = self.model.outputs(
            micro,
            temperature=self._temperature,
            entropy_has_gradient=algorithm.entropy_coef != 0,
            measure=None if top is None else distance_to_top(top, micro, self.model.device),
        )
        logprobs_RS = micro.grid(outputs.logprobs_N)
        before_RS = _grid(known.proximal_N, micro)
        before_RS = logprobs_RS.detach() if before_RS is None else before_RS
        proximal = algorithm.proximal
        objective = policy_objective(
            algorithm,
            logprobs_RS,
            micro.sampler_RS,
            micro.grid(pick(known.advantages_N, micro)),
            micro.mask_RS,
            denominators,
            proximal_BT=before_RS if proximal is None else proximal(micro.sampler_RS, before_RS, micro.lags_RS),
            reference_BT=_grid(known.reference_N, micro),
            entropy_BT=micro.grid(outputs.entropies_N),
            teacher_BT=_grid(known.teacher_N, micro) if outputs.measured_N is None else micro.grid(outputs.measured_N),
            selected_BT=_grid(whole.selected_N, micro),
            mean_weight=whole.mean_weight,
            lags_BT=micro.lags_RS,
        )
        objective.loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
        tally.take(objective.metrics, objective.extremes)
        measure_cuts(micro, {"clipped_frac": objective.clipped_BT, "rejected_frac": objective.rejected_BT}, tally)
        if first_pass:
            # Against the weights at the start of the step: later passes would measure their own changes.
            measure_mismatch(micro, before_RS, tally)
            count_rejected(objective.rejected_BT, micro.slots_N, micro.source_N, tally, micro.sources)
        return objective.nonfinite_BT

    def _logprobs(self, micro: MicroBatch) -> Tensor:
        return self.model.outputs(micro, temperature=self._temperature, entropy_has_gradient=False).logprobs_N


def _grid(values_N: Tensor | None, micro: MicroBatch) -> Tensor | None:
    return None if values_N is None else micro.grid(pick(values_N, micro))
