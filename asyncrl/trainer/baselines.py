"""Greedy answers that come with a group: only their rewards are used, so they go before anything is counted."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from asyncrl.data.policies import GREEDY_BASELINE
from asyncrl.trainer.masked import Masked
from buffer import Group

REASON = "baseline"


@dataclass(frozen=True)
class Parted:
    """Groups without their greedy answers, and what is left of those.

    Attributes:
        groups: those that have another answer too; the same objects where there was no greedy one.
        rewards_G: [G] of the greedy answer to each group's prompt; NaN: there is none, or it has no reward.
        masked: tokens of greedy answers, which the token ledger has as sampled.
    """

    groups: tuple[Group, ...]
    rewards_G: npt.NDArray[np.float64]
    masked: Masked


def part(groups: Sequence[Group]) -> Parted:
    """Take the greedy answers out of groups."""
    tokens: Counter[tuple[str, str]] = Counter()
    parted, rewards = [], []
    for group in groups:
        greedy = [trajectory for trajectory in group.trajectories if trajectory.policy == GREEDY_BASELINE]
        others = tuple(trajectory for trajectory in group.trajectories if trajectory.policy != GREEDY_BASELINE)
        tokens[REASON, group.data_source] += sum(trajectory.num_sampled for trajectory in greedy)
        if not others:
            continue  # nothing is left that could be trained
        parted.append(replace(group, trajectories=others) if greedy else group)
        known = [trajectory.reward for trajectory in greedy if trajectory.reward is not None]
        rewards.append(known[0] if known else np.nan)
    return Parted(tuple(parted), np.array(rewards, dtype=np.float64), {k: n for k, n in tokens.items() if n})
