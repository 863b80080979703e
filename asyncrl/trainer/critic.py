"""The critic and its optimizer: values of a batch's tokens before the step, and a step towards the returns after it."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from asyncrl.algorithms import Algorithm
from asyncrl.algorithms.aggregation import Denominators, aggregate
from asyncrl.algorithms.masking import mean_pair
from asyncrl.algorithms.returns import generalized_advantages
from asyncrl.algorithms.value_loss import value_loss
from asyncrl.config.critic import CriticConfig
from asyncrl.errors import NumericsError
from asyncrl.metrics.phases import phase
from asyncrl.trainer.batch import Batch, Ints
from asyncrl.trainer.engine import open_engine
from asyncrl.trainer.micro_batch import MicroBatch
from asyncrl.trainer.models import Arithmetic, ValueModule
from asyncrl.trainer.optimizer import GuardedAdamW
from asyncrl.trainer.parallel import Ranks
from asyncrl.trainer.passes import Passes, pick
from asyncrl.trainer.start import StartOfStep
from asyncrl.trainer.tally import Tally


class Epochs(Protocol):
    """The part of ActorConfig that says how often a step's groups are gone over."""

    @property
    def ppo_epochs(self) -> int: ...
    @property
    def ppo_mini_batches(self) -> int: ...


class Critic:
    """A second trained model with its optimizer, on every rank its shard of both. Its methods are collective.

    Attributes:
        num_batches: how many it learned from; with `optimizer.steps`, the weights and the moments it is all that a
            resume needs.
    """

    def __init__(
        self,
        model: ValueModule,
        algorithm: Algorithm,
        config: CriticConfig,
        epochs: Epochs,
        *,
        steps: int,
        ranks: Ranks,
    ) -> None:
        """Take a model as it is.

        Args:
            algorithm: what the values are for: the returns are discounted as its advantages are.
            epochs: how often the policy goes over a step's groups; so does the critic.
            steps: training steps of the whole run, for the course of the learning rate.
        """
        self.model, self.ranks = model, ranks
        self._gamma, self._max_nonfinite_frac = discount_of(algorithm), algorithm.max_nonfinite_frac
        self._clip, self._lam, self._epochs = config.clip, config.lam, epochs.ppo_epochs
        self._steps_before_policy = config.steps_before_policy
        self.optimizer = GuardedAdamW(
            [parameter for _, parameter in model.named_parameters()],
            config,
            section="critic",
            total_steps=steps * epochs.ppo_epochs * epochs.ppo_mini_batches,
            ranks=ranks,
        )
        self._passes = Passes(
            *(ranks, config.micro_batch_tokens, ranks.device),
            is_packed=model.is_packed,
            shares_prompts=config.share_prompts,
        )
        self.num_batches = 0

    @classmethod
    def load(
        cls,
        model_path: Path,
        algorithm: Algorithm,
        config: CriticConfig,
        epochs: Epochs,
        *,
        arithmetic: Arithmetic,
        steps: int,
        ranks: Ranks,
        engine: str = "fsdp2",
    ) -> "Critic":
        """Read critic.path, or else the policy's directory `model_path`.

        Args:
            engine: row of engine.ENGINES.
        Raises:
            ConfigError: the directory holds no causal language model that transformers can read, or one that cannot
                read packed rows and should.
        """
        model = open_engine(engine).load_critic(
            model_path if config.path is None else config.path,
            key="model.path" if config.path is None else "critic.path",
            arithmetic=arithmetic,
            ranks=ranks,
            packing=config.packing,
            gradient_checkpointing=config.gradient_checkpointing,
        )
        return cls(model, algorithm, config, epochs, steps=steps, ranks=ranks)

    def named_parameters(self) -> Mapping[str, nn.Parameter]:
        """By the names that the checkpoint has; tied ones once."""
        return dict(self.model.named_parameters())

    @property
    def is_ahead(self) -> bool:
        """Whether the next batch is one that it learns from alone."""
        return self.num_batches < self._steps_before_policy

    def state(self) -> Mapping[str, int]:
        """What a checkpoint keeps of it besides tensors."""
        return {"optimizer_steps": self.optimizer.steps, "batches": self.num_batches}

    def values(self, batch: Batch) -> Tensor:
        """[N] float32, what is still to come before each trained token under the weights as they are now."""
        return self._passes.collect(batch, self._values)

    @phase("update_critic")
    def learn(self, start: StartOfStep, rewards: Tensor, tally: Tally) -> None:
        """Learn what the rewards of a batch came to, after the advantages were made.

        Args:
            start: the batch, with the values before the step.
            rewards: [J] float64, one a trajectory, NaN without one; or [J, S] token rewards.
            tally, and raises: as in `update`.
        """
        joined = start.joined
        _, returns_JS = generalized_advantages(
            rewards, joined.place(start.values_N), joined.trained_JS, gamma=self._gamma, lam=self._lam
        )
        self.update(start.batch, joined.pick(returns_JS), start.values_N, tally)

    def update(self, batch: Batch, returns_N: Tensor, old_values_N: Tensor, tally: Tally) -> None:
        """Learn the returns of one batch, in as many optimizer steps as the policy takes.

        Args:
            returns_N: [N] float, of the trained tokens.
            old_values_N: [N] float, of `values` before the first optimizer step on this batch.
            tally: takes this rank's share of the metrics under critic/.
        Raises:
            NumericsError: more losses than allowed are not finite, or the gradient stays so; the weights are as they
                were before the optimizer step.
        """
        returns_N = returns_N.to(self.ranks.device, torch.float32)
        self.num_batches += 1
        self._measure(returns_N, old_values_N, tally)
        for _ in range(self._epochs):
            for rows in batch.rows_by_mini_batch:
                self._optimizer_step(batch, rows, returns_N, old_values_N, tally)

    def _optimizer_step(self, batch: Batch, rows: Ints, returns_N: Tensor, old_values_N: Tensor, tally: Tally) -> None:
        denominators = self._passes.count(batch, rows)
        if denominators.tokens == 0:
            return
        num_nonfinite = torch.zeros((), dtype=torch.float64, device=self.ranks.device)
        for micro in self._passes.micro_batches(batch, rows):
            targets_RS, old_RS = micro.grid(pick(returns_N, micro)), micro.grid(pick(old_values_N, micro))
            num_nonfinite += self._backward(micro, targets_RS, old_RS, denominators, tally)
        self._require_finite(float(self.ranks.total(num_nonfinite.reshape(1))), denominators.tokens)
        self.optimizer.step(tally, reports=self.ranks.rank == 0)

    def _backward(
        self, micro: MicroBatch, returns_RS: Tensor, old_RS: Tensor, denominators: Denominators, tally: Tally
    ) -> Tensor:
        """Add a micro-batch's gradient; returns the number of its tokens that are not finite."""
        values_RS = micro.grid(self._values(micro))
        tokens = value_loss(values_RS, old_RS, returns_RS, micro.mask_RS, clip=self._clip)
        loss = aggregate(
            tokens.loss_BT,
            micro.mask_RS,
            "token-mean",
            global_tokens=denominators.tokens,
            global_seqs=denominators.sequences,
            dp_size=denominators.dp_size,
        )
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
        tally.take(
            {
                "critic/vf_loss": mean_pair(tokens.loss_BT, micro.mask_RS),
                "critic/vf_clipfrac": tokens.metrics["clip_frac"],
                "critic/vpred_mean": mean_pair(values_RS, micro.mask_RS),
                "critic/nonfinite_tokens": tokens.metrics["nonfinite_tokens"],
            }
        )
        return tokens.metrics["nonfinite_tokens"][0]

    def _values(self, micro: MicroBatch) -> Tensor:
        values_M1: Tensor = self.model(micro.inputs, micro.predictors_M)
        return micro.whole(values_M1.T)[0]

    def _measure(self, returns_N: Tensor, values_N: Tensor, tally: Tally) -> None:
        """What the critic foretold, what came, and how much of the difference between tokens it explains."""
        pairs = torch.stack([returns_N, values_N]).double().cpu()
        returns_N, values_N = pairs[:, pairs.isfinite().all(dim=0)]
        tally.spread("critic/values", values_N)
        tally.spread("critic/returns", returns_N)
        explained = explained_variance(returns_N, values_N, self.ranks)
        if explained is not None and self.ranks.rank == 0:
            tally.mean("critic/vf_explained_var", explained, 1.0)

    def _require_finite(self, num_nonfinite: float, num_tokens: int) -> None:
        if num_nonfinite <= self._max_nonfinite_frac * num_tokens:
            return
        self.optimizer.discard()
        raise NumericsError(
            f"{num_nonfinite:.0f} of {num_tokens} tokens of this step have a NaN or infinite value or return, "
            f"more than algorithm.max_nonfinite_frac = {self._max_nonfinite_frac:.2%}. The critic's optimizer was not "
            "run. Look at critic/grad_norm of the steps before (lower critic.lr), at model.dtype, and at the rewards."
        )


def discount_of(algorithm: Algorithm) -> float:
    """Gamma of an algorithm's advantages; 1 for an estimator that has none."""
    advantage = algorithm.advantage
    settings: Mapping[str, float] = advantage.keywords if isinstance(advantage, partial) else {}
    return settings.get("gamma", 1.0)


def explained_variance(returns_N: Tensor, values_N: Tensor, ranks: Ranks) -> float | None:
    """1 - Var(R - V) / Var(R) over the tokens of all ranks; None where the returns do not differ. Collective.

    1: the values foretell the returns; 0: a constant would do as well; below 0: a constant would do better.

    Args:
        returns_N, values_N: [N] float64, this rank's.
    """
    errors_N = returns_N - values_N
    sums = torch.stack([torch.ones_like(returns_N), returns_N, errors_N, returns_N.square(), errors_N.square()])
    count, r, e, rr, ee = ranks.total(sums.sum(dim=1)).tolist()
    if count == 0:
        return None
    variance_r, variance_e = rr / count - (r / count) ** 2, ee / count - (e / count) ** 2
    # Differences of sums: below this share of the square a variance is rounding.
    return None if variance_r <= 1e-12 * max(rr / count, 1e-30) else 1.0 - variance_e / variance_r
