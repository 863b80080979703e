"""What ranks that share rows find beside a plain step: a loss of whole rows with activations that are made again, a
measure of the whole vocabulary, and a critic."""

from pathlib import Path

import torch

from asyncrl.trainer.batch import build
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.parallel import Ranks, assign
from asyncrl.trainer.start import StartOfStep
from asyncrl.trainer.tally import Tally
from tests.support.policy_rank import groups_of
from tests.support.tiny_critic import make_critic
from tests.support.tiny_policy import make_policy

SETTINGS = {"micro_batch_tokens": 16, "gradient_checkpointing": True, "grad_clip": 1e9}


def facts(model_dir: Path, ranks: Ranks, data_rank: int, data_world: int) -> dict:
    """What a rank finds that trains the groups of `data_rank` of `data_world`; metrics are of all ranks, on rank 0."""
    groups = groups_of(model_dir, 0)
    tokens = {group.ordinal: sum(t.num_tokens for t in group.trajectories) for group in groups}
    own = assign(tokens, data_world)[data_rank]
    batch = build(
        [group for group in groups if group.ordinal in own],
        [list(tokens)],
        filter_zero_variance=False,
        lag_of=lambda version: 0,
        max_lag=8,
    )
    policy = make_policy(model_dir, ranks, algorithm_name="gspo", **SETTINGS)
    critic = make_critic(model_dir, ranks, **SETTINGS)
    with torch.no_grad():  # at zero it would hide the trunk's gradient
        critic.model.head.weight.fill_(0.1)
    squares_N = StartOfStep(batch, policy).sum_pi_squared_N
    tally = Learner(policy, critic).step(batch)
    blobs = ranks.gather((tally if ranks.place.counts else Tally()).to_bytes())
    whole = Tally()
    for blob in blobs or ():
        whole.merge(blob)
    return {"metrics": whole.values(), "squares": squares_N.tolist(), "values": critic.values(batch).tolist()}
