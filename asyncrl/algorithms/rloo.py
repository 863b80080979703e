"""RLOO: each row against the mean of the group's others."""

from functools import partial

from asyncrl.algorithms.advantages import leave_one_out
from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES

ALGORITHM = Algorithm(
    name="rloo",
    advantage=partial(leave_one_out, singleton="zero"),
    correction=CORRECTIONS["tis"],
    loss=LOSSES["ppo_clip"].loss,
    source="arXiv:2402.14740",
)
