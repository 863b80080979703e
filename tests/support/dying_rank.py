"""A trainer over a real Redis that kills itself while a version is on its way and the next step trains.

python -m tests.support.dying_rank CONFIG.json URL MOMENT. MOMENT: "put", before a part of version 1.1 is stored, or
"flip", when version 1.1 has just become head.
"""

import os
import signal
import sys
import threading
from pathlib import Path

import torch

from asyncrl.config import Config
from buffer import ReplayBuffer
from buffer.versions import pack
from tests.support.trainer_run import start_trainer
from weightsync.transport.base import split_key, upload_version
from weightsync.transport.directory import DirectoryTransport

SOON_S = 60.0


def main(config: Config, url: str, moment: str) -> None:
    """Train until the death."""
    torch.set_num_threads(1)
    run = start_trainer(config, ReplayBuffer.connect(url, "toy", config.buffer, config.staleness), url=url)
    second, steps = threading.Event(), []
    step, put, flip = run.parts.learner.step, DirectoryTransport.put_part, run.parts.log.flip

    def die(version: int) -> None:
        if version == pack(1, 1) and second.wait(SOON_S):
            os.kill(os.getpid(), signal.SIGKILL)

    def stepped(batch):
        tally = step(batch)
        steps.append(1)
        if len(steps) == 2:
            second.set()
            threading.Event().wait(SOON_S)  # it dies in here
        return tally

    def putting(transport, key, parts, *, deadline_s):
        if moment == "put":
            die(upload_version(split_key(key)[0]))
        put(transport, key, parts, deadline_s=deadline_s)

    def flipping(base, record):
        flip(base, record)
        if moment == "flip":
            die(record.version)

    run.parts.learner.step, DirectoryTransport.put_part, run.parts.log.flip = stepped, putting, flipping
    run.go()


if __name__ == "__main__":
    settings = Config.model_validate_json(Path(sys.argv[1]).read_text())
    main(settings, sys.argv[2], sys.argv[3])
