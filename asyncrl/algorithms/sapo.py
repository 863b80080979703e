"""SAPO: GRPO's advantages with a smooth gate in place of the clip."""

from functools import partial

from asyncrl.algorithms.advantages import group_relative
from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES

ALGORITHM = Algorithm(
    name="sapo",
    advantage=partial(group_relative, divide_by_std=True, singleton="zero"),
    correction=CORRECTIONS["tis"],
    loss=LOSSES["sapo"].loss,
    aggregation=LOSSES["sapo"].aggregation,
    source="arXiv:2511.20347",
)
