"""GSPO: GRPO's advantages with one ratio a row, clipped in a range a thousand times narrower than PPO's."""

from functools import partial

from asyncrl.algorithms.advantages import group_relative
from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES

ALGORITHM = Algorithm(
    name="gspo",
    advantage=partial(group_relative, divide_by_std=True, singleton="zero"),
    correction=CORRECTIONS["tis"],
    loss=LOSSES["gspo"].loss,
    aggregation=LOSSES["gspo"].aggregation,
    source="arXiv:2507.18071",
)
