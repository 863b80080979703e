"""Online DPO: the best sample of each group preferred to its worst, held to the frozen reference."""

from functools import partial

from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.preference_pairs import measure_pairs, pair_gradient
from asyncrl.algorithms.tables import LOSSES

ALGORITHM = Algorithm(
    name="online_dpo",
    advantage=partial(pair_gradient, kind="sigmoid", beta=0.1, label_smoothing=0.0),
    correction=None,
    loss=LOSSES["reinforce"].loss,
    aggregation="token-sum",
    source="arXiv:2402.04792",
    columns=("logprobs_BT", "reference_BT"),
    measure=partial(measure_pairs, beta=0.1),
    one_update_a_step=True,
)
