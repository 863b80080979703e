"""Rewards: the table by data source, a user's own function, and the pool that bounds both."""

from asyncrl.envs.rewards.compute_score import check_sources, compute_score
from asyncrl.envs.rewards.pool import RewardPool
from asyncrl.envs.rewards.result import Reward, reward_from
from asyncrl.envs.rewards.table import REWARDS, RewardRule

__all__ = ["REWARDS", "Reward", "RewardPool", "RewardRule", "check_sources", "compute_score", "reward_from"]
