"""CISPO: GRPO's advantages on the log-likelihood, weighted by the clipped ratio, so that every token is trained."""

from functools import partial

from asyncrl.algorithms.advantages import group_relative
from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES

ALGORITHM = Algorithm(
    name="cispo",
    advantage=partial(group_relative, divide_by_std=True, singleton="zero"),
    correction=CORRECTIONS["tis"],
    loss=LOSSES["cispo"].loss,
    aggregation=LOSSES["cispo"].aggregation,
    source="arXiv:2506.13585",
)
