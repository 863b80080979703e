"""A run that is killed and resumed against one that is not: the same bits in every number that no clock gives.

The runs are whole ones (`asyncrl train --mode sync`): servers, workers, Redis and the trainer as processes. The kill is
a SIGKILL of the command, which takes all of them along, some steps after the checkpoint that the resume begins from.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from asyncrl.report.lines import read, surviving
from asyncrl.trainer import checkpoint_files as files
from tests.support.commands import CLOCK, CONFIG, Command, last_step

OF_A_RESUME = ("weightsync/", "val-aux/version", "buffer/left", "buffer/num_left")
"""What any resume changes: how weights travel to servers (a branch begins with an anchor of its own), the version with
its branch, and the groups of the branch that was given up, which leave as stale where a kill left any."""
SIZES = ("schedule.groups_per_step=8", "rollout.n=8", "eval.n=1", "metrics.sinks=[]")


def measure(*, steps: int = 40, kill_after: int = 20, overrides: tuple[str, ...] = ()) -> dict[str, Any]:
    """What differs between straight, straight again, and killed and resumed; all differences are to be empty.

    Args:
        steps: of each run.
        kill_after: the step of the checkpoint that is resumed from.
        overrides: further keys of the runs.
    """
    with tempfile.TemporaryDirectory(prefix="asyncrl-resume-") as scratch:
        root = Path(scratch)
        keys = (f"trainer.steps={steps}", f"trainer.checkpoint.every_steps={kill_after}", *SIZES, *overrides)
        straight, again, killed = (root / name for name in ("straight", "again", "killed"))
        for directory in (straight, again):
            finish(train(directory, *keys))
        command = train(killed, *keys)
        command.until(f"step {kill_after + 2}", lambda: last_step(killed) >= kill_after + 2)
        command.until("its checkpoint", lambda: bool(files.listed(killed / "checkpoints")))
        command.kill()
        finish(train(killed, *keys, "--resume"))
        branches = sorted({line.branch for line in read(killed)})
        return {
            "steps": steps,
            "resumed_from": kill_after,
            "branches": branches,
            "again_differs": differences(straight, again, ()),
            "resumed_differs": differences(straight, killed, OF_A_RESUME),
        }


def train(directory: Path, *keys: str) -> Command:
    """Start a run in a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    arguments = ["train", str(CONFIG), "--mode", "sync", f"run.dir={directory}", "run.name=same", *keys]
    return Command(arguments, directory / "train.out")


def finish(command: Command) -> None:
    """Wait for its end, which has to be a good one."""
    code = command.wait(3600.0)
    assert code == 0, command.text()[-4000:]


def differences(one: Path, other: Path, apart_from: tuple[str, ...]) -> list[str]:
    """Steps with the metrics that differ, and the tensors of the last checkpoint if any of their bits do."""
    found = []
    lines = [
        {
            line.step: {n: v for n, v in line.values.items() if not n.startswith((*CLOCK, *apart_from))}
            for line in surviving(read(directory))
        }
        for directory in (one, other)
    ]
    for step in sorted({*lines[0], *lines[1]}):
        left, right = (numbers.get(step, {}) for numbers in lines)
        names = sorted(name for name in {*left, *right} if _bits(left.get(name)) != _bits(right.get(name)))
        found += [f"step {step}: {', '.join(names)}"] if names else []
    hashes = [_newest_hashes(directory / "checkpoints") for directory in (one, other)]
    return found if hashes[0] == hashes[1] else [*found, f"weights, moments or random states: {hashes}"]


def _bits(value: float | None) -> str:
    return "" if value is None else value.hex()


def _newest_hashes(directory: Path) -> dict[str, str]:
    """File of a rank -> its hash, in the newest checkpoint."""
    _, path = files.listed(directory)[-1]
    manifest = json.loads((path / files.MANIFEST).read_text())["files"]
    return {name: entry["blake3"] for name, entry in manifest.items() if name.startswith("rank-")}


if __name__ == "__main__":
    print(json.dumps(measure()))
