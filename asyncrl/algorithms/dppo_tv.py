"""DPPO: GRPO's advantages in a trust region of total variation, token by token."""

from functools import partial

from asyncrl.algorithms.advantages import group_relative
from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES

ALGORITHM = Algorithm(
    name="dppo_tv",
    advantage=partial(group_relative, divide_by_std=True, singleton="zero"),
    correction=CORRECTIONS["tis"],
    loss=LOSSES["dppo_tv"].loss,
    aggregation=LOSSES["dppo_tv"].aggregation,
    source="arXiv:2602.04879",
)
