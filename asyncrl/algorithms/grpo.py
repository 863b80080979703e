"""GRPO: group-relative advantages, clipped surrogate, truncated importance sampling against the sampler."""

from functools import partial

from asyncrl.algorithms.advantages import group_relative
from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES

ALGORITHM = Algorithm(
    name="grpo",
    advantage=partial(group_relative, divide_by_std=True, singleton="zero"),
    correction=CORRECTIONS["tis"],
    loss=LOSSES["ppo_clip"].loss,
    source="arXiv:2402.03300",
)
