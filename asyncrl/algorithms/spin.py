"""SPIN: online DPO against the policy's own previous iterate, the one that sampled."""

from functools import partial

from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.preference_pairs import measure_self_play, self_play_gradient
from asyncrl.algorithms.tables import LOSSES

ALGORITHM = Algorithm(
    name="spin",
    advantage=partial(self_play_gradient, beta=0.1),
    correction=None,
    loss=LOSSES["reinforce"].loss,
    aggregation="token-sum",
    source="arXiv:2401.01335",
    columns=("logprobs_BT", "sampler_BT"),
    measure=partial(measure_self_play, beta=0.1),
    one_update_a_step=True,
)
