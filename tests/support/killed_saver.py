"""A rank of a trainer of which one rank kills itself around the checkpoint of step 4: python -m
tests.support.killed_saver CONFIG.json URL DIES MOMENT RESUME.

DIES: the rank, -1: none. MOMENT: of MOMENTS, or REPORTED. RESUME: "resume", or anything else.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import torch

from asyncrl.config import Config
from asyncrl.trainer import checkpoint, checkpoint_files, retention, tensor_file
from asyncrl.trainer.parallel import open_ranks
from asyncrl.trainer.state_copy import StateCopy
from buffer import ReplayBuffer
from tests.support.trainer_run import start_trainer

STEP = 4
MOMENTS = ("copying", "writing", "before the rename", "before the commit", "after the commit", "deleting the old one")
REPORTED = "after its report"
"""Of another rank than the first: its file is written, and it has said so."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(config: Config, url: str, *, dies: int, moment: str, resume: bool) -> None:
    """Train until the death, or to the end."""
    torch.set_num_threads(1)
    ranks = open_ranks(config)
    buffer = ReplayBuffer.connect(url, config.run.name, config.buffer, config.staleness)
    run = start_trainer(config, buffer, ranks=ranks)
    if ranks.rank == dies:
        arm(moment, run)
    run.go(resume=resume)
    if ranks.rank == 0:
        (config.run.directory / "lines.json").write_text(json.dumps(run.sink.lines))


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
    checkpoint.done_by_rank0 = at(REPORTED, checkpoint.done_by_rank0)
    retention.shutil.rmtree = at("deleting the old one", half_deleted, after=True)


def half_deleted(path, ignore_errors=False):
    del ignore_errors
    next(iter(Path(path).glob("*.safetensors"))).unlink()


if __name__ == "__main__":
    assert shutil is retention.shutil
    file, address, *rest = sys.argv[1:]
    settings = Config.model_validate_json(Path(file).read_text())
    told = dict(zip(("dies", "moment", "resume"), rest, strict=True))
    main(settings, address, dies=int(told["dies"]), moment=told["moment"], resume=told["resume"] == "resume")
