"""A rank of a whole trainer over a real Redis: python -m tests.support.loop_rank CONFIG.json URL HELDOUT."""

import json
import sys
from pathlib import Path

import torch

from asyncrl.config import Config
from asyncrl.trainer.parallel import ProcessGroup, open_ranks
from buffer import ReplayBuffer
from tests.support.trainer_run import start_trainer


def main(config: Config, url: str, heldout: int) -> dict:
    """Run to the end; what this rank's loop answered and wrote."""
    torch.set_num_threads(1)
    ranks = open_ranks(config)
    buffer = ReplayBuffer.connect(url, "toy", config.buffer, config.staleness)
    run = start_trainer(config, buffer, heldout=heldout, ranks=ranks, url=url)
    outcome = run.go()
    buffer.close()
    if isinstance(ranks, ProcessGroup):
        ranks.close()
    lines = run.sink.reproducible() if ranks.rank == 0 else []
    return {"reason": outcome.reason, "version": outcome.version, "facts": outcome.facts, "lines": lines}


if __name__ == "__main__":
    settings = Config.model_validate_json(Path(sys.argv[1]).read_text())
    print(json.dumps(main(settings, sys.argv[2], int(sys.argv[3]))), flush=True)
