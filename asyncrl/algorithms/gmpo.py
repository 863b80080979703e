"""GMPO: GRPO's advantages with the geometric mean of the clipped token ratios, one loss a row."""

from functools import partial

from asyncrl.algorithms.advantages import group_relative
from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES

ALGORITHM = Algorithm(
    name="gmpo",
    advantage=partial(group_relative, divide_by_std=True, singleton="zero"),
    correction=CORRECTIONS["tis"],
    loss=LOSSES["gmpo"].loss,
    aggregation=LOSSES["gmpo"].aggregation,
    source="arXiv:2507.20673",
)
