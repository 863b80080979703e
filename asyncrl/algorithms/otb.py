"""The optimal token baseline: one baseline a group and position, of the least variance."""

from functools import partial

from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES
from asyncrl.algorithms.token_baseline import optimal_token_baseline

ALGORITHM = Algorithm(
    name="otb",
    advantage=partial(optimal_token_baseline, singleton="zero"),
    correction=CORRECTIONS["tis"],
    loss=LOSSES["ppo_clip"].loss,
    source="verl 0.9, optimal_token_baseline",
    columns=("logprobs_BT", "sum_pi_squared_BT", "weights_BT"),
)
