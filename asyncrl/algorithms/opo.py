"""OPO: the baseline that is optimal under equal gradient norms a token: rewards weighted by length."""

from functools import partial

from asyncrl.algorithms.advantages import length_weighted_baseline
from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES

ALGORITHM = Algorithm(
    name="opo",
    advantage=partial(length_weighted_baseline, singleton="zero"),
    correction=CORRECTIONS["tis"],
    loss=LOSSES["ppo_clip"].loss,
    source="arXiv:2505.23585",
)
