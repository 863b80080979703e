"""A rank that trains a critic and saves it: python -m tests.support.critic_rank MODEL OUTPUT CHECKPOINTS.

It trains from the beginning, and then once more from the checkpoint of another number of ranks.
"""

import json
import sys
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from asyncrl.config import CheckpointConfig, Config, ParallelConfig, TrainerConfig
from asyncrl.trainer.batch import Batch, build
from asyncrl.trainer.checkpoint import Checkpoints
from asyncrl.trainer.checkpoint_files import CheckpointName
from asyncrl.trainer.critic import Critic
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.parallel import Ranks, assign, open_ranks
from asyncrl.trainer.tally import Tally
from tests.support.tiny_critic import make_critic
from tests.support.tiny_policy import make_groups, make_policy

STEPS, SAVED_AFTER = 3, 2


def train(model_dir: Path, out: Path, ranks: Ranks, first: int = 0, checkpoint: Path | None = None) -> dict:
    """Steps `first` to STEPS - 1: metrics of each, and the critic's first and last gradients."""
    critic = make_critic(model_dir, ranks, epochs=2, micro_batch_tokens=30, grad_clip=1e9, lr_decay="linear")
    learner = Learner(make_policy(model_dir, ranks, algorithm_name="ppo_gae"), critic)
    if checkpoint is not None:
        stored = Checkpoints(checkpoint, CheckpointConfig())
        saved = stored.newest()
        stored.load(saved, learner.policy, critic=critic)
        learner.restore(saved.state)
    gradients = noted_gradients(critic)
    found: dict = {"metrics": [], "gradients": gradients}
    for step in range(first, STEPS):
        blobs = ranks.gather(learner.step(own_part(model_dir, step, ranks)).to_bytes())
        if blobs is not None:
            whole = Tally()
            for blob in blobs:
                whole.merge(blob)
            found["metrics"].append({k: v for k, v in whole.values().items() if k.startswith("critic/")})
        if step + 1 == SAVED_AFTER:
            state = {"optimizer_steps": learner.policy.optimizer_steps, **learner.state()}
            place = Checkpoints(out / "checkpoints", CheckpointConfig())
            place.save(CheckpointName(1, step, step), learner.policy, state, ranks, critic=critic)
    ranks.barrier()
    return found


def own_part(model_dir: Path, step: int, ranks: Ranks) -> Batch:
    """This rank's part of a batch of five groups: the ranks have different numbers of micro-batches."""
    groups = make_groups(model_dir, 5, 3, seed=step)
    tokens = {g.ordinal: sum(t.num_tokens for t in g.trajectories) for g in groups}
    own = assign(tokens, ranks.world)[ranks.rank]
    return build(
        [g for g in groups if g.ordinal in own],
        [list(tokens)],
        filter_zero_variance=False,
        lag_of=lambda version: 0,
        max_lag=8,
    )


def noted_gradients(critic: Critic) -> list[dict[str, list[float]]]:
    """A list that every optimizer step adds its whole gradients to, by name."""
    noted: list[dict[str, list[float]]] = []
    step = critic.optimizer.step

    def note(tally: Tally, *, reports: bool) -> None:
        whole = {}
        for name, parameter in critic.named_parameters().items():
            gradient = parameter.grad
            assert gradient is not None
            whole[name] = (gradient.full_tensor() if isinstance(gradient, DTensor) else gradient).flatten().tolist()
        noted.append(whole)
        step(tally, reports=reports)

    critic.optimizer.step = note  # type: ignore[method-assign]  # looks on, then does the same
    return noted


if __name__ == "__main__":
    torch.set_num_threads(1)
    model, output, other = map(Path, sys.argv[1:])
    group = open_ranks(Config(trainer=TrainerConfig(device="cpu", parallel=ParallelConfig(fsdp=2))))
    found = train(model, output / "whole", group)
    resumed = train(model, output / "resumed", group, SAVED_AFTER, other)
    print(json.dumps({"whole": found, "resumed": resumed}))
    group.close()
