"""separate_async against sync on the same two cores: wall time of the same steps, and time to the same held-out score.

    scripts/bench modes [--steps N] [--cases latency,generation,training] [--repeats N] [--limit L]

Three workloads on the tiny model: latency-bound (each answer waits for a tool, lognormal seconds with a heavy tail),
generation-bound (few rows decoded at once), train-bound (several passes over each batch). Both modes get the same
processes on the same cores; only the mode's row differs. It does not show GPUs, where sync also pays for moving memory.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scripts.benches.whole_runs import Run, run

CASES: dict[str, tuple[str, ...]] = {
    "latency": ("rollout.environment=scripts.benches.slow_tools:SlowTools", "rollout.slots=4096"),
    "generation": ("inference.max_running_requests=8",),
    "training": ("actor.ppo_epochs=4",),
}
SUFFIX = {"latency": "", "generation": "_generation_bound", "training": "_train_bound"}


def main(argv: Sequence[str] = ()) -> dict[str, float | None]:
    """Speed-up of separate_async over sync by case, with the seconds behind it."""
    parser = argparse.ArgumentParser(prog="scripts/bench modes", description=__doc__)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--limit", type=int, help="staleness.limit of separate_async; default: the mode's")
    args = parser.parse_args(argv)
    figures: dict[str, float | None] = {}
    for case in args.cases.split(","):
        pairs = [_pair(case, args.steps, args.limit) for _ in range(args.repeats)]
        suffix = SUFFIX[case]
        seconds = [statistics.median(pair[i].seconds() for pair in pairs) for i in (0, 1)]
        figures[f"separate_over_sync_speedup{suffix}"] = round(seconds[0] / seconds[1], 3)
        figures[f"sync_s{suffix}"], figures[f"separate_s{suffix}"] = (round(value, 2) for value in seconds)
        score, times = _same_score(*pairs[0])
        figures[f"same_score{suffix}"] = score
        figures[f"sync_s_to_score{suffix}"], figures[f"separate_s_to_score{suffix}"] = times
        figures[f"separate_lag_mean{suffix}"] = pairs[0][1].summary["lag_mean"]
    return figures


def _pair(case: str, steps: int, limit: int | None) -> tuple[Run, Run]:
    keys = (f"trainer.steps={steps}", "eval.every_versions=6", "eval.n=1", *CASES[case])
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-") as scratch:
        runs = []
        for mode in ("sync", "separate_async"):
            own = (f"staleness.limit={limit}",) if limit is not None and mode == "separate_async" else ()
            runs.append(run(mode, Path(scratch) / mode, [*keys, *own]))
            print(f"{case} {mode}: {runs[-1].seconds():.1f} s, scores {runs[-1].scores()}", file=sys.stderr)
    return runs[0], runs[1]


def _same_score(sync: Run, separate: Run) -> tuple[float, tuple[float | None, float | None]]:
    """The best score that both reached, and when each did."""
    score = min(max(score for _, score in found.scores()) for found in (sync, separate))
    at_s = [found.seconds_to(score) for found in (sync, separate)]
    return round(score, 4), (
        None if at_s[0] is None else round(at_s[0], 2),
        None if at_s[1] is None else round(at_s[1], 2),
    )
