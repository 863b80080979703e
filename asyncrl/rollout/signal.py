"""Whether a group can teach anything: members with equal rewards have no advantage over each other."""

from collections.abc import Iterable

from asyncrl.data.policies import GREEDY_BASELINE
from buffer import Trajectory


def shared_reward(trajectories: Iterable[Trajectory]) -> float | None:
    """The one reward that all members of a group have; None if they differ, or fewer than two have one.

    A greedy answer is no member. Held to `algorithms.rewards.zero_variance` by tests/contract/test_dynamic_sampling.py.

    Source: DAPO arXiv:2503.14476, section 3.2.
    """
    rewards = [t.reward for t in trajectories if t.policy != GREEDY_BASELINE and t.reward is not None]
    # max == min, not std == 0: the deviation of three rewards of 0.1 is 1.4e-17.
    return rewards[0] if len(rewards) >= 2 and max(rewards) == min(rewards) else None
