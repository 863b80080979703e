"""A rank that trains an adapter, saves, publishes and exports it: python -m tests.support.lora_rank.

Arguments: model directory, output directory, and a checkpoint directory: it trains from the beginning in float32 and in
bfloat16, once more from that checkpoint, and from the beginning with every product cut in two.
"""

import json
import sys
from functools import partial
from pathlib import Path

import torch

from asyncrl.config import Config, ParallelConfig, TrainerConfig
from asyncrl.trainer.parallel import ProcessGroup, open_ranks
from tests.support import policy_rank

train = partial(policy_rank.train, lora_rank=3, lora_alpha=6.0, lora_target_modules=("q_proj", "o_proj", "down_proj"))
train_low = partial(train, arithmetic="bfloat16")

if __name__ == "__main__":
    torch.set_num_threads(1)
    model, output, other = map(Path, sys.argv[1:])
    group = open_ranks(Config(trainer=TrainerConfig(device="cpu", parallel=ParallelConfig(fsdp=2))))
    assert isinstance(group, ProcessGroup)
    found = {
        "whole": train(model, output / "whole", group),
        "low": train_low(model, output / "low", group),
        "resumed": train(model, output / "resumed", group, 2, other),
    }
    group.arrange(group.rank, ParallelConfig(tp=2), group.device, patience_s=250.0)
    found["cut"] = train(model, output / "cut", group)
    print(json.dumps(found))
    group.close()
