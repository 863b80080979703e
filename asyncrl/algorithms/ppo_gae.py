"""PPO with a critic: generalized advantages, whitened over the batch."""

from functools import partial

from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.returns import whitened_gae
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES

ALGORITHM = Algorithm(
    name="ppo_gae",
    advantage=partial(whitened_gae, gamma=1.0, lam=1.0),
    correction=CORRECTIONS["tis"],
    loss=LOSSES["ppo_clip"].loss,
    source="arXiv:1707.06347; arXiv:1506.02438",
    columns=("values_BT",),
)
