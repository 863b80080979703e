"""What a run that has ended came to, under the names and over the steps of a prediction."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.errors import DataError
from asyncrl.report.lines import Line
from asyncrl.tuning.prediction import warm_up_steps
from asyncrl.tuning.profile import Setting

WAITS = ("timing_s/wait/trainer waits for fresh groups", "timing_s/wait/stale_groups")


def counted_steps(lines: Sequence[Line], setting: Setting, run_dir: Path) -> list[Line]:
    """The lines of the steps after warm-up.

    Raises:
        DataError: there is none.
    """
    trained = [line for line in lines if line.is_training and "timing_s/step" in line.values]
    first = warm_up_steps(setting)
    if len(trained) <= first:
        raise DataError(
            f"{run_dir}/metrics.jsonl has {len(trained)} training steps; the first {first} fill the pipeline at limit "
            f"{setting.limit} and say nothing about the others. Let the run train more steps."
        )
    return trained[first:]


def waited_s(line: Line) -> float:
    """Seconds of a step in which the trainer waited for groups."""
    return sum(line.values.get(name, 0.0) for name in WAITS)


def step_s(steps: Sequence[Line]) -> float:
    """Mean seconds of a step."""
    return sum(line.values["timing_s/step"] for line in steps) / len(steps)


def stall_share(steps: Sequence[Line]) -> float:
    """Share of the seconds in which the trainer waits for groups."""
    return sum(map(waited_s, steps)) / sum(line.values["timing_s/step"] for line in steps)


def tokens_per_s(steps: Sequence[Line]) -> float:
    """Trained tokens over seconds."""
    tokens = sum(line.values["perf/total_num_tokens"] for line in steps)
    return tokens / sum(line.values["timing_s/step"] for line in steps)


def stale_share(summary: Mapping[str, Any]) -> float:
    """Groups that left for being stale, of these and all that were trained on; of the whole run.

    From the summary, which has the ledger's counts: a step's metrics do not know of groups that were stale when they
    came in.
    """
    left = summary["stale_groups"]
    return float(left / (left + summary["groups"]["consumed"])) if left else 0.0


def lag_mean(steps: Sequence[Line]) -> float:
    """Mean lag of the groups."""
    groups = sum(line.values["buffer/num_groups"] for line in steps)
    return sum(line.values["buffer/lag_mean"] * line.values["buffer/num_groups"] for line in steps) / groups
