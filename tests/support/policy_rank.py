"""A rank that trains given groups, saves a checkpoint, publishes and exports: python -m tests.support.policy_rank.

Arguments: model directory, output directory, and a checkpoint directory: it trains from the beginning, and then once
more from that checkpoint.
"""

import json
import sys
from functools import cache
from pathlib import Path

import torch

from asyncrl.config import CheckpointConfig, Config, ModelConfig, ParallelConfig, TrainerConfig
from asyncrl.trainer.batch import build
from asyncrl.trainer.checkpoint import Checkpoints
from asyncrl.trainer.checkpoint_files import CheckpointName
from asyncrl.trainer.export import export_policy
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.metric_names import renamed
from asyncrl.trainer.parallel import Ranks, assign, mini_batches, open_ranks
from asyncrl.trainer.tally import Tally
from buffer import Group
from buffer.versions import pack
from tests.support.tiny_policy import make_groups, make_policy
from weightsync.config import WeightsyncConfig
from weightsync.digest import digest_of_model_dir
from weightsync.log import open_log
from weightsync.manifest import Manifest
from weightsync.publisher import WeightPublisher
from weightsync.transport import open_transport

STEPS = 3


@cache
def groups_of(model_dir: Path, step: int) -> list[Group]:
    """What a step trains; made once for all that a process trains."""
    return make_groups(model_dir, 5, 3, seed=step)


def train(
    model_dir: Path, out: Path, ranks: Ranks, first: int = 0, checkpoint: Path | None = None, **others: object
) -> dict:
    """Steps `first` to STEPS - 1; a checkpoint after step 1. `others` are settings of make_policy."""
    settings = {"lr": 3e-3, "ppo_mini_batches": 2, "ppo_epochs": 2, "micro_batch_tokens": 40, "lr_decay": "linear"}
    # Ranks that share a reference keep it on the CPU, so that both ways have to give the same numbers.
    settings |= {"offload_reference": ranks.world > 1}
    place = ranks.place
    policy = make_policy(model_dir, ranks, algorithm_kl_coef=0.1, algorithm_entropy_coef=0.01, **settings, **others)
    if checkpoint is not None:
        stored = Checkpoints(checkpoint, CheckpointConfig())
        stored.load(stored.newest(), policy)
    log = open_log(str(out / "log"), "toy")
    transport = WeightsyncConfig(directory=str(out / "parts"))
    publisher = WeightPublisher(
        Manifest.from_model_dir(model_dir, "bfloat16"),
        policy.shards,
        log,
        open_transport(transport, "", "toy"),
        transport,
        ranks,
    )
    publisher.claim(1)
    publisher.publish_origin(model_dir)
    found = {"metrics": [], "digests": [], "tokens": 0}
    for step in range(first, STEPS):
        # One group more than fits evenly: the ranks have different numbers of micro-batches.
        groups = groups_of(model_dir, step)
        tokens = {g.ordinal: sum(t.num_tokens for t in g.trajectories) for g in groups}
        parts = mini_batches(list(tokens), 2)
        own = {o for part in parts for o in assign({o: tokens[o] for o in part}, place.data_world)[place.data_rank]}
        batch = build(
            [g for g in groups if g.ordinal in own],
            parts,
            filter_zero_variance=False,
            lag_of=lambda version: 0,
            max_lag=8,
        )
        found["tokens"] += batch.num_trained
        tally = Learner(policy).step(batch)
        blobs = ranks.gather((tally if place.counts else Tally()).to_bytes())
        if blobs is not None:
            whole = Tally()
            for blob in blobs:
                whole.merge(blob)
            found["metrics"].append(renamed(whole.values()))
        found["digests"].append(f"{publisher.publish(pack(1, step + 1)).digest:016x}")
        if step == 1:
            state = {"optimizer_steps": policy.optimizer_steps}
            Checkpoints(out / "checkpoints", CheckpointConfig()).save(CheckpointName(1, 2, 2), policy, state, ranks)
    export_policy(policy, Config(model=ModelConfig(path=model_dir)), out / "export", "1.3", ranks)
    ranks.barrier()
    found["exported"] = f"{digest_of_model_dir(out / 'export', Manifest.from_model_dir(out / 'export')):016x}"
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    model, output, other = map(Path, sys.argv[1:])
    group = open_ranks(Config(trainer=TrainerConfig(device="cpu", parallel=ParallelConfig(fsdp=2))))
    found = train(model, output / "whole", group)
    resumed = train(model, output / "resumed", group, 2, other)
    print(json.dumps({"whole": found, "resumed": resumed}))
    group.close()
