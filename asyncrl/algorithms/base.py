"""What an algorithm is: a row of data that names pure functions and their settings."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from asyncrl.algorithms.kl import KLController
from asyncrl.algorithms.masking import Metrics
from asyncrl.errors import NumericsError

Total: TypeAlias = Callable[[Tensor], Tensor]
"""Sums a float64 vector over the ranks that share a batch (`alone` on one rank)."""


def alone(values: Tensor) -> Tensor:
    """The sum over ranks when there is one."""
    return values


class NonFiniteError(NumericsError):
    """More of a step's tokens than allowed had a NaN or infinite loss or log ratio."""


@dataclass(frozen=True)
class TokenLoss:
    """A policy loss before aggregation."""

    loss_BT: Tensor
    """[B, T] float32, to be minimised; exactly 0, with gradient 0, at masked and non-finite positions."""
    metrics: Metrics
    """clip_frac, approx_kl and others, over valid tokens; always `nonfinite_tokens`."""
    nonfinite_BT: Tensor
    """[B, T] bool: valid tokens that were left out because log ratio or loss was not finite."""
    clipped_BT: Tensor | None = None
    """[B, T] bool: valid tokens that a bound of the loss cuts, on either side. None: it has no bounds."""


@dataclass(frozen=True)
class Correction:
    """How much each token counts for having been sampled by another policy; all of it detached."""

    weights_BT: Tensor
    """[B, T] float32 importance weights, >= 0, 0 at masked positions."""
    keep_BT: Tensor
    """[B, T] bool, False at masked and rejected positions. Rejection leaves the loss's denominators as they were."""
    metrics: Metrics
    nonfinite_BT: Tensor
    """[B, T] bool: valid tokens whose log ratio was NaN; their weight is 0."""
    extremes: dict[str, Tensor] = field(default_factory=dict)
    """Metrics whose names end in max or min: reduced by that over micro-batches and ranks."""


class AdvantageEstimator(Protocol):
    """Rewards to advantages. Takes whole groups: a rank that sees part of a group would centre on part of it."""

    def __call__(
        self, rewards: Tensor, mask_BT: Tensor, group_ids_B: Tensor, *, total: Total = alone, **columns: Tensor
    ) -> Tensor:
        """Advantages of every policy token.

        Args:
            rewards: [B] float, one a row, NaN for a row that has no score: it is left out of its group's statistics
                and gets 0. Or [B, T] token rewards.
            mask_BT: bool, True on policy tokens, before any rejection.
            group_ids_B: int64, opaque; rows of one group share one.
            total: sums over ranks, used by estimators with statistics over the whole batch.
            columns: what else it looks at, by the names in `Algorithm.columns`; for what each is, see
                asyncrl/trainer/columns.py. An estimator has each of its own as a keyword argument.
        Returns:
            [B, T] float32, 0 at masked positions.
        """
        ...


class AdvantageMeasure(Protocol):
    """Says what an estimator found, in metrics. Takes what the estimator takes, and changes nothing."""

    def __call__(self, rewards: Tensor, mask_BT: Tensor, group_ids_B: Tensor, **columns: Tensor) -> Metrics:
        """Pairs by the metrics' full names; arguments as in `AdvantageEstimator`."""
        ...


class CorrectionRule(Protocol):
    """Compares the trainer's logprobs with those the sampler recorded."""

    def __call__(self, trainer_BT: Tensor, sampler_BT: Tensor, mask_BT: Tensor) -> Correction: ...


class SelectionRule(Protocol):
    """Picks tokens of a mini-batch by statistics of all of it; a micro-batch alone would pick others."""

    def __call__(
        self,
        logprobs_N: Tensor,
        proximal_N: Tensor,
        sampler_N: Tensor,
        advantages_N: Tensor,
        *,
        generator: torch.Generator,
    ) -> Tensor:
        """Which tokens are picked.

        Args:
            logprobs_N: [N] float, nats, of the valid tokens of the mini-batch on all ranks, under the current weights.
            proximal_N, sampler_N, advantages_N: [N] float, of the same tokens.
            generator: source of any chance.
        Returns:
            [N] bool.
        """
        ...


@dataclass(frozen=True)
class Selection:
    """A rule, and what becomes of the tokens that it picks."""

    rule: SelectionRule
    rejects: bool
    """True: they have weight 0, and the denominators stay. False: the loss has `selected_BT` among its columns."""


class ProximalRule(Protocol):
    """Stands in for logprobs of the policy that the clip is centred on."""

    def __call__(self, sampler_BT: Tensor, logprobs_BT: Tensor, lags_BT: Tensor) -> Tensor:
        """[B, T] float32 nats, detached, from the sampler's logprobs, those at the start of the step, and the lags."""
        ...


class PolicyLoss(Protocol):
    """A token loss. In losses.py and sequence_losses.py; held to tests/contract/test_algorithms.py."""

    def __call__(
        self,
        logprobs_BT: Tensor,
        proximal_BT: Tensor,
        advantages_BT: Tensor,
        mask_BT: Tensor,
        weights_BT: Tensor | None = None,
        **columns: Tensor,
    ) -> TokenLoss:
        """Loss of every token.

        Args:
            logprobs_BT: float, nats, under the weights being trained, at the sampling temperature; with gradient.
            proximal_BT: float, nats, the policy that the ratio and its clip range are centred on.
            advantages_BT: float.
            mask_BT: bool, True on policy tokens.
            weights_BT: rollout weights >= 0 that multiply the loss; 0 where a token was rejected.
            columns: what else it looks at, by the names in `Algorithm.loss_columns`: `selected_BT`, [B, T] bool, what
                the algorithm's selection picked; `lags_BT`, [B, T] int64, age of the tokens in versions.
        """
        ...


@dataclass(frozen=True)
class RewardKL:
    """A KL penalty to the reference, taken off the token rewards before the advantages."""

    controller: KLController
    """Its coefficient at the start of the run."""
    estimator: str
    """One of kl.KL_ESTIMATORS."""


@dataclass(frozen=True)
class Overlong:
    """What becomes of responses that come near the length limit; arguments of `rewards.overlong_penalty`."""

    max_length: int
    buffer: int
    factor: float


@dataclass(frozen=True)
class Algorithm:
    """One row of ALGORITHMS: a vetted combination. `resolve` replaces the parts that the configuration names.

    What a row does not say is plain: token-mean, no other term in the loss, nothing selected or penalised.
    """

    name: str
    advantage: AdvantageEstimator
    correction: CorrectionRule | None
    """None: the sampler's policy is taken for the trainer's."""
    loss: PolicyLoss
    source: str
    aggregation: str = "token-mean"
    """A mode of `aggregation.aggregate`."""
    norm_length: int | None = None
    """Tokens that seq-mean-token-sum-norm divides by: a constant of the run, never a tensor's width."""
    kl_coef: float = 0.0
    kl_estimator: str = "k3"
    entropy_coef: float = 0.0
    filter_zero_variance: bool = False
    """Leave groups without a difference in reward out of the loss (dynamic sampling)."""
    max_nonfinite_frac: float = 0.01
    bypass: bool = False
    """Two policies instead of three: the sampler's logprobs are the centre of the ratio, and the correction compares
    the current ones with them. A ratio loss then takes rejection rules only, for its ratio already is the weight."""
    columns: tuple[str, ...] = ()
    """Keyword arguments of `advantage` besides `total`: entries of asyncrl/trainer/columns.py."""
    measure: AdvantageMeasure | None = None
    """Metrics of the advantages; `resolve` takes it from the row that the estimator is of."""
    clip_follows_lag: bool = False
    """Whether the loss's clip range depends on the age of the tokens."""
    one_update_a_step: bool = False
    """The advantages are the gradient of a loss at the weights they were computed with: a second optimizer step of the
    same batch would use those of other weights, and is refused."""
    selection: Selection | None = None
    proximal: ProximalRule | None = None
    """None: the clip is centred on the weights at the start of the step themselves."""
    normalize_weights: bool = False
    """Divide the importance weights by their mean over the mini-batch on all ranks."""
    reward_kl: RewardKL | None = None
    overlong: Overlong | None = None
    distill_coef: float = 0.0
    """Weight of a term that pulls every token that a teacher scored towards the teacher; 0: there is none."""
    distill_estimator: str = "k2"
    """Estimator of that term, one of distillation.DISTILL_ESTIMATORS."""
    filter_overlong: bool = False
    """Leave responses that were cut at the length limit out of the loss; their rewards stay in the baseline."""

    @property
    def loss_columns(self) -> tuple[str, ...]:
        """Keyword arguments that `loss` is called with besides its settings."""
        selected = self.selection is not None and not self.selection.rejects
        return (*(("selected_BT",) if selected else ()), *(("lags_BT",) if self.clip_follows_lag else ()))


def require_finite(num_nonfinite: float, num_tokens: float, *, limit: float, where: str = "") -> None:
    """Stop a step in which too many tokens had no finite loss. Call it on the sums over ranks, before the optimizer.

    Args:
        num_nonfinite: numerator of the metric `nonfinite_tokens`, summed over micro-batches and ranks.
        num_tokens: its count.
        limit: largest share, `algorithm.max_nonfinite_frac`.
        where: whose tokens they are, for the message.
    Raises:
        NonFiniteError: the share is above the limit.
    """
    if num_nonfinite > limit * num_tokens:
        raise NonFiniteError(
            f"{num_nonfinite:.0f} of {num_tokens:.0f} tokens of this step have a NaN or infinite loss or log ratio: "
            f"{num_nonfinite / num_tokens:.2%} > algorithm.max_nonfinite_frac = {limit:.2%}{where}. They were "
            "masked, but a step on the rest would hide broken weights or logprobs, so the optimizer was not run. Look "
            "at actor/grad_norm of the steps before (lower actor.lr), at model.dtype, and at the servers' logprobs."
        )
