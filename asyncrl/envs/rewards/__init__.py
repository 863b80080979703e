"""Rewards: the table by data source, a user's own function, and the pool that bounds both.

No reward here runs what a model wrote: answers are read, compared and calculated. (Of the tools `python` does, in
processes that are cut off from the machine: docs/tools.md.) A reward of your own that executes an answer runs it with
the worker's rights, in a process that is killed when it hangs and is no sandbox: give it one (a container, a separate
user, no network).
"""

from asyncrl.envs.rewards.compute_score import check_sources, compute_score
from asyncrl.envs.rewards.pool import RewardPool
from asyncrl.envs.rewards.result import Reward, reward_from
from asyncrl.envs.rewards.table import REWARDS, RewardRule

__all__ = ["REWARDS", "Reward", "RewardPool", "RewardRule", "check_sources", "compute_score", "reward_from"]
