"""DAPO: GRPO with clip-higher, dual clip 10, dynamic sampling, token-mean, no KL.

Its overlong penalty (`rewards.overlong_penalty`) shapes the reward and is not part of the row.
"""

from functools import partial

from asyncrl.algorithms.advantages import group_relative
from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.losses import ppo_clip
from asyncrl.algorithms.tables import CORRECTIONS

ALGORITHM = Algorithm(
    name="dapo",
    advantage=partial(group_relative, divide_by_std=True, singleton="zero"),
    correction=CORRECTIONS["tis"],
    loss=partial(ppo_clip, low=0.2, high=0.28, dual_clip=10.0),
    filter_zero_variance=True,
    source="arXiv:2503.14476",
)
