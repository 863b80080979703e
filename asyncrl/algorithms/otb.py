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
    aggregation="token-mean",
    norm_length=None,
    kl_coef=0.0,
    kl_estimator="k3",
    entropy_coef=0.0,
    filter_zero_variance=False,
    source="verl 0.9, optimal_token_baseline",
    columns=("logprobs_BT", "sum_pi_squared_BT", "weights_BT"),
)
