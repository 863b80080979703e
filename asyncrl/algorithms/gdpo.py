"""GDPO: every part of the reward is compared in its group by itself."""

from functools import partial

from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.components import decoupled_components
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES

ALGORITHM = Algorithm(
    name="gdpo",
    advantage=partial(decoupled_components, divide_by_std=True, singleton="zero"),
    correction=CORRECTIONS["tis"],
    loss=LOSSES["ppo_clip"].loss,
    source="arXiv:2601.05242",
    columns=("components_KB",),
)
