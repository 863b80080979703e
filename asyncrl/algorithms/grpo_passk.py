"""Pass@k training: only a group's best row is reinforced, by its lead over the second best."""

from functools import partial

from asyncrl.algorithms.advantages import best_of_group
from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES

ALGORITHM = Algorithm(
    name="grpo_passk",
    advantage=partial(best_of_group, divide_by_std=True),
    correction=CORRECTIONS["tis"],
    loss=LOSSES["ppo_clip"].loss,
    source="arXiv:2503.19595",
)
