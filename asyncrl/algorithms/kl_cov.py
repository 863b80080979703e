"""KL-Cov: GRPO, with a penalty on the tokens of highest covariance of logprob and advantage."""

from functools import partial

from asyncrl.algorithms.advantages import group_relative
from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES

ALGORITHM = Algorithm(
    name="kl_cov",
    advantage=partial(group_relative, divide_by_std=True, singleton="zero"),
    correction=CORRECTIONS["tis"],
    loss=LOSSES["kl_cov"].loss,
    source="arXiv:2505.22617",
    selection=LOSSES["kl_cov"].selection,
)
