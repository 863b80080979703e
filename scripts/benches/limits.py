"""Does the staleness limit hold, and what does it cost: limits 0, 1, 4 under `wait` and `drop`, with slow tools.

    scripts/bench limits [--steps N] [--limits 0,1,4] [--policies wait,drop]

The tools of scripts/benches/slow_tools.py make stragglers, so that `drop` has something to drop. Prints the largest lag
at consumption, the groups that were stale, the seconds the trainer waited, and trained against started answer lengths.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scripts.benches.whole_runs import run

KEYS = (
    "rollout.environment=scripts.benches.slow_tools:SlowTools",
    "rollout.slots=4096",
    "schedule.groups_per_step=16",
    "eval.n=1",
)
WAITS = ("trainer waits for fresh groups", "stale_groups")


def main(argv: Sequence[str] = ()) -> dict[str, float | bool | None]:
    """Figures by limit and policy."""
    parser = argparse.ArgumentParser(prog="scripts/bench limits", description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--limits", default="0,1,4")
    parser.add_argument("--policies", default="wait,drop")
    args = parser.parse_args(argv)
    figures: dict[str, float | bool | None] = {}
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-") as scratch:
        for policy in args.policies.split(","):
            for limit in map(int, args.limits.split(",")):
                name = f"{policy}_{limit}"
                keys = (f"trainer.steps={args.steps}", f"staleness.limit={limit}", f"staleness.policy={policy}")
                found = run("separate_async", Path(scratch) / name, [*KEYS, *keys])
                lags = {int(lag): groups for lag, groups in found.summary["lag_histogram"].items()}
                print(f"{name}: lag {lags}, {found.summary['groups_by_reason']}", file=sys.stderr)
                figures[f"{name}_lag_max"] = max(lags)
                figures[f"{name}_stale_groups"] = found.summary["stale_groups"]
                figures[f"{name}_waited_s"] = round(sum(found.summary["waits_s"].get(wait, 0.0) for wait in WAITS), 2)
                figures[f"{name}_wall_s"] = round(found.seconds(), 2)
                figures[f"{name}_audit_ok"] = found.summary["audit_ok"]
    return figures
