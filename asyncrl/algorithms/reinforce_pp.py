"""REINFORCE++: returns whitened over the whole batch, no groups."""

from functools import partial

from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.returns import whitened_returns
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES

ALGORITHM = Algorithm(
    name="reinforce_pp",
    advantage=partial(whitened_returns, gamma=1.0),
    correction=CORRECTIONS["tis"],
    loss=LOSSES["ppo_clip"].loss,
    kl_estimator="k2",
    source="arXiv:2501.03262",
)
