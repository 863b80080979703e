"""A trainer as a process, its parts in its memory: python -m tests.support.tcp_trainer HOME MODEL_DIR BRANCH SEED.

It starts from the weights after step SEED of `weights_at`, and publishes the next step for every line that it reads.
"""

import sys
from pathlib import Path

from torch import Tensor

from tests.support.fused_model import checkpoint, stepped
from tests.support.tcp_parts import open_tcp, tcp_config
from weightsync.log import open_log
from weightsync.manifest import Manifest
from weightsync.publisher import WeightPublisher
from weightsync.shard import shards_of
from weightsync.versions import pack


def weights_at(step: int) -> dict[str, Tensor]:
    """The weights after so many steps from the checkpoint."""
    weights = checkpoint()
    for seed in range(1, step + 1):
        weights = stepped(weights, seed)
    return weights


def main(home: Path, model_dir: Path, branch: int, step: int) -> None:
    """Publish until the input ends."""
    weights = weights_at(step)
    config = tcp_config(bucket_words=1200)
    publisher = WeightPublisher(
        Manifest.from_model_dir(model_dir, "bfloat16"),
        lambda: shards_of(weights.items(), "bfloat16"),
        open_log(str(home), "run"),
        open_tcp(home, config),
        config,
    )
    publisher.publish_origin(model_dir)
    publisher.claim(branch)
    for _ in sys.stdin:
        step += 1
        weights = stepped(weights, step)
        print(publisher.publish(pack(branch, step)).kind, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
