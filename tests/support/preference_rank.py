"""A rank that trains preference algorithms on given groups; arguments: the model directory, and their names."""

import json
import sys
from pathlib import Path

import torch

from asyncrl.config import Config, ParallelConfig, TrainerConfig
from asyncrl.trainer.batch import build
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.metric_names import renamed
from asyncrl.trainer.parallel import Ranks, open_ranks
from asyncrl.trainer.tally import Tally
from tests.support.tiny_policy import make_groups, make_policy

STEPS = 2
REWARDS = [[1.0, 0.0, 0.5], [0.0, 0.25, 1.0], [1.0, 1.0, 1.0], [0.0, None, 2.0]]


def train(model_dir: Path, name: str, ranks: Ranks) -> list[dict[str, float]]:
    """Metrics of each step, of all ranks together; on rank 0. The last rank has most of the groups."""
    policy = make_policy(model_dir, ranks, algorithm_name=name, lr=3e-3, micro_batch_tokens=20)
    learner, lines = Learner(policy), []
    for step in range(STEPS):
        groups = make_groups(model_dir, len(REWARDS), 3, seed=step, rewards=REWARDS)
        own = [group for group in groups if min(group.ordinal, ranks.world - 1) == ranks.rank]
        batch = build(
            own, [[group.ordinal for group in groups]], filter_zero_variance=False, lag_of=lambda version: 0, max_lag=8
        )
        blobs = ranks.gather(learner.step(batch).to_bytes())
        if blobs is not None:
            whole = Tally()
            for blob in blobs:
                whole.merge(blob)
            lines.append(renamed(whole.values()))
    return lines


if __name__ == "__main__":
    torch.set_num_threads(1)
    model, *names = sys.argv[1:]
    group = open_ranks(Config(trainer=TrainerConfig(device="cpu", parallel=ParallelConfig(fsdp=2))))
    found = {name: train(Path(model), name, group) for name in names}
    print(json.dumps(found))
    group.close()
