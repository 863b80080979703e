"""Decoupled PPO: the clip around the proximal policy, a weight from the sampler to it, no dual clip."""

from functools import partial

from asyncrl.algorithms.advantages import group_relative
from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.losses import ppo_clip
from asyncrl.algorithms.tables import CORRECTIONS

ALGORITHM = Algorithm(
    name="decoupled_ppo",
    advantage=partial(group_relative, divide_by_std=True, singleton="zero"),
    correction=CORRECTIONS["tis"],
    loss=partial(ppo_clip, low=0.2, high=0.2, dual_clip=None),
    source="arXiv:2505.24298",
)
