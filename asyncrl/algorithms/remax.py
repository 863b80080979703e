"""ReMax: each row against the greedy response to its prompt."""

from functools import partial

from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.returns import above_greedy
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES

ALGORITHM = Algorithm(
    name="remax",
    advantage=partial(above_greedy),
    correction=CORRECTIONS["tis"],
    loss=LOSSES["ppo_clip"].loss,
    source="arXiv:2310.10505",
    columns=("baselines_B",),
)
