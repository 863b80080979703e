"""Metrics of a step's groups: rewards, lengths, turns, what was left out of the loss, and how old the tokens are."""

import numpy as np
import numpy.typing as npt
import torch

from asyncrl.trainer.batch import Batch
from asyncrl.trainer.masked import name_of
from asyncrl.trainer.mismatch import MAX_LAGS
from asyncrl.trainer.tally import Tally

Numbers = npt.NDArray[np.generic]


def measure(batch: Batch, tally: Tally) -> None:
    """Add one rank's groups. Trajectories without a reward count in lengths, not in rewards.

    A response is as long as the tokens that the policy sampled for it: what an environment said in between is none.
    """
    members = [trajectory for group in batch.groups for trajectory in group.trajectories]
    rewards_J = batch.trajectories.rewards_J
    baselines_J = batch.trajectories.baselines_J
    _spread(tally, "critic/score", rewards_J[np.isfinite(rewards_J)])
    _spread(tally, "critic/baseline", baselines_J[np.isfinite(baselines_J)])
    prompts = np.array([trajectory.rows[0].num_prompt_tokens for trajectory in members], dtype=np.int64)
    _spread(tally, "prompt_length", prompts)
    _spread(tally, "response_length", batch.trajectories.num_sampled_J)
    _spread(tally, "num_turns", np.array([trajectory.num_turns for trajectory in members], dtype=np.int64))
    count = len(members)
    for reason, name in (("length", "response_length/clip_ratio"), ("abort", "response/aborted_ratio")):
        tally.mean(name, sum(trajectory.finish_reason == reason for trajectory in members), count)
    tally.mean("training/without_reward_frac", int(np.isnan(rewards_J).sum()), count)
    tally.mean("training/zero_variance_frac", len(batch.zero_variance), len(batch.groups))
    for trajectory in members:
        for part, value in trajectory.reward_parts.items():
            tally.mean(f"reward/{part}/mean", value, 1.0)
    for group in batch.groups:
        known = [t.reward for t in group.trajectories if t.reward is not None]
        tally.mean(f"critic/rewards/{group.data_source}/mean", sum(known), len(known))
        sampled = sum(t.num_sampled for t in group.trajectories)
        tally.mean(f"response_length/{group.data_source}/mean", sampled, len(group.trajectories))
    for (reason, source), tokens in batch.masked.items():
        tally.count(name_of(reason, source), tokens)
    _lags(batch, tally)


def _lags(batch: Batch, tally: Tally) -> None:
    _spread(tally, "training/off_policy/lag", batch.lags_N)
    counts = np.bincount(np.minimum(batch.lags_N, MAX_LAGS)) if len(batch.lags_N) else np.zeros(0)
    for lag, tokens in enumerate(counts.tolist()):
        tally.count(f"training/off_policy/lag_{lag}/tokens", tokens)


def _spread(tally: Tally, name: str, values: Numbers) -> None:
    tally.spread(name, torch.from_numpy(values))
