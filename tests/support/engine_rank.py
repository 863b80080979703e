"""One tensor-parallel rank of an engine as a process: `python -m tests.support.engine_rank STORE MODEL NEW`.

Which one, RANK and WORLD_SIZE say. It loads MODEL, lets the loader apply what lies in the stage directory of its
environment, and compares with NEW.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from tests.support.fused_model import bits, engine_of, same_bits
from weightsync import sglang_loader
from weightsync.peers import GroupPeers, find_peers


def main(rank: int, world: int, store: str, model_dir: Path, new: Path) -> dict[str, object]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    peers = find_peers()
    assert isinstance(peers, GroupPeers)
    rows = torch.arange(rank + 1, dtype=torch.int64).reshape(-1, 1) + 10 * rank
    model = engine_of(model_dir, rank, world)
    sglang_loader.load(model, [])
    found = {
        "status": model.get_weights_by_name(sglang_loader.STATUS),
        "equal": same_bits(bits(model), bits(engine_of(new, rank, world))),
        "worst": peers.worst(rank),
        "sums": peers.sums([(1 << 64) - 1, rank]),
        "tables": [table.flatten().tolist() for table in peers.tables(rows)],
    }
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    place = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    print(json.dumps(main(*place, sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))))
