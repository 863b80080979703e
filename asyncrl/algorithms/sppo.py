"""SPPO: each row's log ratio to the policy that sampled is drawn to its win probability within the group."""

from functools import partial

from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.preference_pairs import measure_self_play, win_probability_gradient
from asyncrl.algorithms.tables import LOSSES

ALGORITHM = Algorithm(
    name="sppo",
    advantage=partial(win_probability_gradient, eta=1.0),
    correction=None,
    loss=LOSSES["reinforce"].loss,
    aggregation="token-sum",
    source="arXiv:2405.00675",
    columns=("logprobs_BT", "sampler_BT"),
    measure=partial(measure_self_play, beta=1.0),
    one_update_a_step=True,
)
