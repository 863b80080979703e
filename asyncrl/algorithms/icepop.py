"""IcePop: GRPO without the tokens whose two engines disagree by more than a factor."""

from functools import partial

from asyncrl.algorithms.advantages import group_relative
from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES

ALGORITHM = Algorithm(
    name="icepop",
    advantage=partial(group_relative, divide_by_std=True, singleton="zero"),
    correction=CORRECTIONS["icepop"],
    loss=LOSSES["ppo_clip"].loss,
    source="arXiv:2510.18855",
)
