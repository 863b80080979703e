"""What a step does with a batch: rewards with their penalties -> advantages -> the policy's optimizer steps.

batch -> columns (passes without gradient) -> shaped rewards -> advantages -> policy.step
                                               KL controller <- mean KL
                                               returns    -> critic.update
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from asyncrl.algorithms import Algorithm
from asyncrl.algorithms.advantages import token_rewards
from asyncrl.algorithms.kl import KLController
from asyncrl.algorithms.rewards import overlong_penalty, subtract_kl
from asyncrl.errors import CheckpointError
from asyncrl.metrics.phases import phase
from asyncrl.trainer.batch import Batch
from asyncrl.trainer.columns import COLUMNS
from asyncrl.trainer.critic import Critic
from asyncrl.trainer.flops import UPDATE
from asyncrl.trainer.policy import Policy
from asyncrl.trainer.start import StartOfStep
from asyncrl.trainer.tally import Tally
from asyncrl.trainer.teacher_scores import measure_teacher, needs_teacher


class Learner:
    """The policy, and what else a step changes.

    Attributes:
        policy: the trained model with its optimizer.
        critic: the second one; None for an algorithm without one.
        kl_controller: coefficient of the KL penalty in the reward; None without one.
    """

    def __init__(self, policy: Policy, critic: Critic | None = None) -> None:
        self.policy, self.critic = policy, critic
        reward_kl = self.algorithm.reward_kl
        self.kl_controller: KLController | None = None if reward_kl is None else reward_kl.controller

    @property
    def algorithm(self) -> Algorithm:
        """What is optimised."""
        return self.policy.algorithm

    @phase("learner")
    def step(self, batch: Batch) -> Tally:
        """Train one batch. Every rank calls it together.

        Returns:
            This rank's share of the metrics under actor/, critic/, rollout_corr/ and training/off_policy/.
        Raises:
            NumericsError: more tokens than allowed are not finite, or the gradient stays so; the weights are as they
                were before the optimizer step.
        """
        tally = Tally()
        start = StartOfStep(batch, self.policy, self.critic)
        rewards = self._shaped(start, tally)
        advantages_N = self.advantages(start, rewards, tally)
        tally.spread("critic/advantages", advantages_N)
        if needs_teacher(self.algorithm):
            measure_teacher(start.logprobs_N, start.teacher_N, tally)
        policy_waits = self.critic is not None and self.critic.is_ahead
        if self.critic is not None:
            self.critic.learn(start, rewards, tally)
        if not policy_waits:
            if self.policy.model.device.type == "cuda":
                torch.cuda.synchronize(self.policy.model.device)  # else its seconds would have the passes before it
            with phase(UPDATE):
                self.policy.step(start, advantages_N, tally)
        return tally

    def advantages(self, start: StartOfStep, rewards: Tensor, tally: Tally | None = None) -> Tensor:
        """[N] float32 of the trained tokens.

        Args:
            rewards: [J] float64, one a trajectory, NaN without one; or [J, S] token rewards.
            tally: gets what the algorithm measures of its advantages.
        """
        mask_JS, columns = self._seen(start)
        groups_J = torch.from_numpy(start.batch.trajectories.group_J)
        advantages_JS = self.algorithm.advantage(rewards, mask_JS, groups_J, total=self.policy.ranks.total, **columns)
        if self.algorithm.measure is not None and tally is not None:
            tally.take(self.algorithm.measure(rewards, mask_JS, groups_J, **columns))
        return start.joined.pick(advantages_JS).float()

    def _seen(self, start: StartOfStep) -> tuple[Tensor, dict[str, Tensor]]:
        """The mask and the columns of an estimator."""
        asked = {name: COLUMNS[name] for name in self.algorithm.columns}
        # What is known of trained tokens only must not meet a sampled token of which it is not known.
        of_trained = any(column.per_token for column in asked.values())
        mask_JS = start.joined.trained_JS if of_trained else start.joined.sampled_JS
        return mask_JS, {name: column.make(start, self.algorithm) for name, column in asked.items()}

    def state(self) -> Mapping[str, Any]:
        """What a checkpoint keeps of a step besides tensors."""
        coef = {} if self.kl_controller is None else {"reward_kl_coef": self.kl_controller.coef}
        return coef if self.critic is None else {**coef, "critic": self.critic.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave, as a checkpoint kept it.

        Raises:
            CheckpointError: the coefficient of the run's KL penalty is not in it.
        """
        reward_kl = self.algorithm.reward_kl
        if reward_kl is None:
            return
        if "reward_kl_coef" not in state:
            raise CheckpointError(
                "The checkpoint has no coefficient of the KL penalty in the reward (algorithm.reward_kl_coef): it was "
                "made without one, and the penalty would begin anew in the middle of the run. Resume without "
                "reward_kl_coef, or start a new run from the exported model."
            )
        controller = reward_kl.controller
        self.kl_controller = KLController(float(state["reward_kl_coef"]), controller.target, controller.horizon)

    def _shaped(self, start: StartOfStep, tally: Tally) -> Tensor:
        """[J] or [J, S] rewards with the algorithm's penalties."""
        trajectories, overlong = start.batch.trajectories, self.algorithm.overlong
        rewards = torch.from_numpy(trajectories.rewards_J)
        if overlong is not None:
            penalty_J = overlong_penalty(
                torch.from_numpy(trajectories.num_response_J),
                max_length=overlong.max_length,
                buffer=overlong.buffer,
                factor=overlong.factor,
            ).double()
            tally.mean("critic/overlong_penalty/mean", float(penalty_J.sum()), len(penalty_J))
            rewards = rewards + penalty_J
        if self.algorithm.reward_kl is not None and self.kl_controller is not None:
            rewards = self._without_kl(start, rewards, self.algorithm.reward_kl.estimator, self.kl_controller, tally)
        known_J = (rewards.sum(dim=-1) if rewards.dim() == 2 else rewards).double()
        tally.spread("critic/rewards", known_J[known_J.isfinite()])
        return rewards

    def _without_kl(
        self, start: StartOfStep, rewards_J: Tensor, estimator: str, controller: KLController, tally: Tally
    ) -> Tensor:
        joined = start.joined
        # On the last token that is trained, where there is one: returns are taken over trained tokens only.
        seen_JS = torch.where(joined.trained_JS.any(dim=-1, keepdim=True), joined.trained_JS, joined.sampled_JS)
        rewards_JS, (numerator, count) = subtract_kl(
            token_rewards(rewards_J, seen_JS),
            joined.place(start.logprobs_N),
            joined.place(start.reference_N),
            joined.trained_JS,
            coef=controller.coef,
            kind=estimator,
        )
        sums = self.policy.ranks.total(torch.stack([numerator, count]).double())
        reports = float(self.policy.ranks.rank == 0)
        tally.mean("actor/reward_kl_coef", controller.coef * reports, reports)
        tally.mean("actor/reward_kl_penalty", float(numerator), float(count))
        num_rows = int(sums[1])
        if num_rows:
            self.kl_controller = controller.updated(float(sums[0]) / num_rows, num_rows)
        return rewards_JS
