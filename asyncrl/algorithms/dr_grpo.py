"""Dr.GRPO: GRPO without the two divisions that favour long wrong answers and easy or hard questions."""

from functools import partial

from asyncrl.algorithms.advantages import group_relative
from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES

ALGORITHM = Algorithm(
    name="dr_grpo",
    advantage=partial(group_relative, divide_by_std=False, singleton="zero"),
    correction=CORRECTIONS["tis"],
    loss=LOSSES["ppo_clip"].loss,
    aggregation="seq-mean-token-sum-norm",
    norm_length=None,  # the longest response, a constant of the run: `resolve` is given rollout.max_new_tokens
    source="arXiv:2503.20783",
)
