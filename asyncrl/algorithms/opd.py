"""On-policy distillation: the advantage of a token is how much likelier the teacher finds it; no task reward is needed.

The policy gradient of the reverse KL to the teacher on the policy's own samples, with PPO's clip and truncated
importance sampling against the sampler, so that it takes stale samples as the other rows do.
"""

from functools import partial

from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.distillation import MAX_ABS, towards_teacher
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES

ALGORITHM = Algorithm(
    name="opd",
    advantage=partial(towards_teacher, kind="k1", max_abs=MAX_ABS),
    columns=("logprobs_BT", "teacher_BT"),
    correction=CORRECTIONS["tis"],
    loss=LOSSES["ppo_clip"].loss,
    source="arXiv:2306.13649",
)
