"""REINFORCE++ with baseline: the group's mean as the baseline, the batch's deviation as the scale."""

from functools import partial

from asyncrl.algorithms.advantages import group_baseline_whitened
from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES

ALGORITHM = Algorithm(
    name="reinforce_pp_baseline",
    advantage=partial(group_baseline_whitened, singleton="zero"),
    correction=CORRECTIONS["tis"],
    loss=LOSSES["ppo_clip"].loss,
    kl_estimator="k2",
    source="arXiv:2501.03262",
)
