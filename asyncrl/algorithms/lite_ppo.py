"""Lite PPO: the group's mean as baseline, the batch's deviation as scale."""

from functools import partial

from asyncrl.algorithms.advantages import scaled_by_batch
from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES

ALGORITHM = Algorithm(
    name="lite_ppo",
    advantage=partial(scaled_by_batch, singleton="zero"),
    correction=CORRECTIONS["tis"],
    loss=LOSSES["ppo_clip"].loss,
    source="arXiv:2508.08221",
)
