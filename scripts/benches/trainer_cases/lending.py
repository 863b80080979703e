"""Lending the trainer's device while it waits: the same generation-bound run with and without it, processes as devices.

Core 0 is the rollout cluster's: its server decodes few rows at once and the answers are long, so that making a batch
takes several times as long as training on it. Core 1 is the trainer's, and, with schedule.lend_trainer_gpus, a second
server's while the trainer waits. The switch here is that of processes: no memory moves between a GPU and its host.
"""

import statistics
import sys
import tempfile
from pathlib import Path

from scripts.benches.trainer_cases.scenes import Scene, make
from scripts.benches.whole_runs import Run, run

LONG = Scene("long", max_new_tokens=192, mean_lengths=(float("inf"),) * 10)
"""Answers that are cut at the limit."""
ROWS = 2
"""Rows that a server decodes at once: what makes the run generation-bound on a CPU, as memory does on a GPU."""
CORES = {"serve-rollout": 0, "train": 1}
WARM_STEPS = 3  # a switch is measured in them, and servers start
SCRIPTS = Path(__file__).resolve().parents[1] / "peers"


def measure(home: Path, *, steps: int = 10, repeats: int = 2) -> dict[str, float | None]:
    """Wall seconds of a run that lends over those of one that does not, and what lies behind them.

    Args:
        home: where the model is made once.
        steps: training steps of a run.
        repeats: pairs of runs, one after the other; figures are medians.
    """
    directory = make(LONG, home)
    pairs = [(_train(directory, steps, lends=False), _train(directory, steps, lends=True)) for _ in range(repeats)]
    for alone, lent in pairs:
        print(f"lending: {alone.seconds():.1f} s without, {lent.seconds():.1f} s with", file=sys.stderr)
    lending = [line for _, lent in pairs for line in _steps(lent)]
    return {
        "lend_wall_ratio": _median([lent.seconds() / alone.seconds() for alone, lent in pairs]),
        "lend_step_ratio": _median([_step_s(lent) / _step_s(alone) for alone, lent in pairs]),
        "lend_off_s": _median([alone.seconds() for alone, _ in pairs]),
        "lend_on_s": _median([lent.seconds() for _, lent in pairs]),
        "lend_train_s": _median([line["timing_s/update_actor"] for line in lending]),
        "lend_wake_s": _median([line["perf/lend/wake_s"] for line in lending if "perf/lend/wake_s" in line]),
        "lend_sleep_s": _median([line["perf/lend/sleep_s"] for line in lending if "perf/lend/sleep_s" in line]),
        "lend_switches_per_step": _median([line.get("perf/lend/switches", 0.0) for line in lending]),
    }


def _train(directory: Path, steps: int, *, lends: bool) -> Run:
    keys = (
        f"model.path={directory / 'model'}",
        "starter=null",
        f"data.train_files=[{directory / 'train.parquet'}]",
        "data.val_files=[]",
        f"rollout.n={LONG.group}",
        f"rollout.max_new_tokens={LONG.max_new_tokens}",
        f"rollout.reward.file={SCRIPTS / 'repeat_reward.py'}",
        "rollout.reward.workers=1",
        "rollout.slots=48",
        "data.max_prompt_tokens=16",
        f"inference.context_length={LONG.max_new_tokens + 16}",
        f"inference.max_running_requests={ROWS}",
        f"schedule.groups_per_step={LONG.prompts}",
        f"schedule.lend_trainer_gpus={str(lends).lower()}",
        f"actor.lr={LONG.lr}",
        f"trainer.steps={steps}",
        f"trainer.checkpoint.every_steps={steps}",
        "eval.every_versions=0",
    )
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-") as scratch:
        return run("separate_async", Path(scratch) / ("lent" if lends else "kept"), keys, cores=CORES)


def _steps(found: Run) -> list[dict[str, float]]:
    """Lines of the steps after the first ones."""
    return [line for line in found.lines if "actor/pg_loss" in line][WARM_STEPS:]


def _step_s(found: Run) -> float:
    return statistics.fmean(line["timing_s/step"] for line in _steps(found))


def _median(values: list[float]) -> float | None:
    return round(statistics.median(values), 3) if values else None
