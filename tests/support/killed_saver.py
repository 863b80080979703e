"""Trainers that kill themselves around the checkpoint of step 4: python -m tests.support.killed_saver URL.

Reads lines `MOMENT CONFIG.json` and answers each with the number of the signal that ended the trainer. The modules are
imported once; each trainer is a fork.
"""

import os
import shutil
import signal
import sys
from pathlib import Path

import torch

from asyncrl.config import Config
from asyncrl.trainer import checkpoint_files, retention, tensor_file
from asyncrl.trainer.state_copy import StateCopy
from buffer import ReplayBuffer
from tests.support.trainer_run import start_trainer

STEP = 4
MOMENTS = ("copying", "writing", "before the rename", "before the commit", "after the commit", "deleting the old one")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(moment: str, config: Config, url: str) -> None:
    """Train until the death."""
    torch.set_num_threads(1)
    buffer = ReplayBuffer.connect(url, config.run.name, config.buffer, config.staleness)
    run = start_trainer(config, buffer)
    arm(moment, run)
    run.go()


def arm(moment, run):
    """Die at that moment of the checkpoint of STEP."""
    buffer = run.parts.buffer
    due = {"step": 0}
    save, copy, commit = run.parts.checkpoints.save, run.parts.checkpoints.copy, buffer.commit

    def saving(name, *args, **parts):
        due["step"] = name.step
        return save(name, *args, **parts)

    def copying(*args):
        due["step"] += 2  # every second step
        return copy(*args)

    def at(wanted, call, *, after=False):
        def dying(*args, **parts):
            if moment == wanted and due["step"] == STEP and not after:
                die()
            result = call(*args, **parts)
            if moment == wanted and due["step"] == STEP:
                die()
            return result

        return dying

    run.parts.checkpoints.save, run.parts.checkpoints.copy = saving, copying
    buffer.commit = at("after the commit", at("before the commit", commit), after=True)
    StateCopy._buffer = at("copying", StateCopy._buffer, after=True)
    tensor_file._write_all = at("writing", tensor_file._write_all, after=True)
    checkpoint_files.write_state = at("before the rename", checkpoint_files.write_state, after=True)
    retention.shutil.rmtree = at("deleting the old one", half_deleted, after=True)


def half_deleted(path, ignore_errors=False):
    del ignore_errors
    next(iter(Path(path).glob("*.safetensors"))).unlink()


if __name__ == "__main__":
    assert shutil is retention.shutil
    for line in sys.stdin:
        *words, file = line.split()
        if (pid := os.fork()) == 0:
            main(" ".join(words), Config.model_validate_json(Path(file).read_text()), sys.argv[1])
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
