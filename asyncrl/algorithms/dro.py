"""DRO: GRPO's advantages with a quadratic penalty in place of the clip."""

from functools import partial

from asyncrl.algorithms.advantages import group_relative
from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES

ALGORITHM = Algorithm(
    name="dro",
    advantage=partial(group_relative, divide_by_std=True, singleton="zero"),
    correction=CORRECTIONS["tis"],
    loss=LOSSES["dro"].loss,
    source="arXiv:2405.19107",
)
