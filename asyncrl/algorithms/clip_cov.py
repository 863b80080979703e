"""Clip-Cov: GRPO, with some tokens of high covariance of logprob and advantage left out."""

from functools import partial

from asyncrl.algorithms.advantages import group_relative
from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES

ALGORITHM = Algorithm(
    name="clip_cov",
    advantage=partial(group_relative, divide_by_std=True, singleton="zero"),
    correction=CORRECTIONS["tis"],
    loss=LOSSES["clip_cov"].loss,
    source="arXiv:2505.22617",
    selection=LOSSES["clip_cov"].selection,
)
