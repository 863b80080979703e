"""Predictions of `asyncrl tune` against runs: profiles are fitted from three runs, and other settings predicted.

    scripts/bench tune [--runs DIR] [--only NAME ...] [--at-once N] [--steps N]

Each case is a whole run of the tiny model by the user's commands, with an environment that makes each answer wait for a
tool, lognormal seconds. The runs are kept in DIR; one that is there is not run again. `tune_error_max` is the largest
error of seconds per step over the predicted cases. Beside it the same with the trainer's speed taken from the
predicted run itself: on a machine that others use, too, a step takes longer at one time than at another, and no setting
tells that. It does not show devices: split over servers and ranks is not varied, there is one CPU for all.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from asyncrl.load_config import load
from asyncrl.report.lines import read, surviving
from asyncrl.tuning import measured
from asyncrl.tuning.fit import fit, setting_of
from asyncrl.tuning.prediction import Prediction
from asyncrl.tuning.profile import Profile
from asyncrl.tuning.simulator import simulate
from scripts.benches.whole_runs import run

TOOLS = {"SLOW_TOOLS_MEDIAN_S": "1.0", "SLOW_TOOLS_SIGMA": "0.6"}
BASE = (
    "schedule.groups_per_step=8",
    "rollout.n=4",
    "rollout.environment=scripts.benches.slow_tools:SlowTools",
    "rollout.slots=1024",
    "data.val_files=[]",
    "trainer.checkpoint.every_steps=20",
    "staleness.limit=2",
)
DROP, FEW_SLOTS, LONG_STEPS = "staleness.policy=drop", "rollout.slots=24", "actor.ppo_epochs=8"
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "wait2": ("wait2", ()),
    "slots24": ("slots24", (FEW_SLOTS,)),
    "train2": ("train2", (LONG_STEPS,)),
    "wait0": ("wait2", ("staleness.limit=0",)),
    "wait1": ("wait2", ("staleness.limit=1",)),
    "wait4": ("wait2", ("staleness.limit=4",)),
    "drop1": ("wait2", ("staleness.limit=1", DROP)),
    "wait1_of_2_steps": ("wait2", ("staleness.limit=1", "schedule.steps_per_version=2")),
    "slots24_wait0": ("slots24", ("staleness.limit=0", FEW_SLOTS)),
    "slots48": ("slots24", ("rollout.slots=48",)),
    "train0": ("train2", ("staleness.limit=0", LONG_STEPS)),
}
"""Case -> the case whose profile predicts it, and what differs from BASE. One that is predicted by itself is fitted."""
SEEDS = range(4)


@dataclass(frozen=True)
class Row:
    """A case: seconds of a step, and the share of them that the trainer waits; measured, predicted, and predicted with
    the trainer's speed of the run itself."""

    name: str
    profile: str
    step_s: tuple[float, float, float]
    stall: tuple[float, float, float]
    others: str

    def error(self, which: int) -> float:
        """Of the seconds of a step, relative to the measured ones."""
        return self.step_s[which] / self.step_s[0] - 1


def main(argv: Sequence[str] = ()) -> dict[str, float | str | None]:
    """Largest error of the predicted cases, and the error of each."""
    parser = argparse.ArgumentParser(prog="scripts/bench tune", description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/bench-tune"))
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--at-once", type=int, default=1, help="runs at the same time; they mostly wait")
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args(argv)
    runs = args.runs.resolve()
    with ThreadPoolExecutor(args.at_once) as pool:
        list(pool.map(lambda name: _measure(runs / name, CASES[name][1], args.steps), args.only))
    profiles = {name: fit(runs / name) for name in args.only if CASES[name][0] == name}
    rows = [_compare(runs / name, name, profiles[CASES[name][0]]) for name in args.only]
    for row in rows:
        _print(row)
    predicted = [row for row in rows if row.profile != row.name]
    return {
        "tune_error_max": _largest(row.error(1) for row in predicted),
        "tune_error_max_own_trainer": _largest(row.error(2) for row in predicted),
        "tune_stall_error_max": _largest(row.stall[1] - row.stall[0] for row in predicted),
        "num_predicted": len(predicted),
        **{f"error_{row.name}": round(row.error(1), 3) for row in rows},
    }


def _measure(directory: Path, overrides: Sequence[str], steps: int) -> None:
    if (directory / "summary.json").exists():
        return
    before = os.getloadavg()[0]
    run("separate_async", directory, [f"trainer.steps={steps}", *BASE, *overrides], TOOLS)
    print(f"{directory.name}: load {before:.1f} before, {os.getloadavg()[0]:.1f} after", file=sys.stderr)


def _compare(directory: Path, name: str, profile: Profile) -> Row:
    config = load(directory / "config.yaml").config
    setting = setting_of(config)
    steps = measured.counted_steps(surviving(read(directory)), setting, directory)
    own = fit(directory).speeds
    stale = measured.stale_share(json.loads((directory / "summary.json").read_text()))
    speeds = profile.speeds.model_copy(update={"step_s": own.step_s, "trained_token_s": own.trained_token_s})
    found = [
        [simulate(used, setting, steps=config.trainer.steps, seed=seed) for seed in SEEDS]
        for used in (profile, profile.model_copy(update={"speeds": speeds}))
    ]
    step_s = [fmean(one.step_s for one in some) for some in found]
    stall = [fmean(one.stall_share for one in some) for some in found]
    return Row(
        name,
        CASES[name][0],
        (measured.step_s(steps), step_s[0], step_s[1]),
        (measured.stall_share(steps), stall[0], stall[1]),
        f"lag {measured.lag_mean(steps):.2f} / {_mean(found[0], 'lag_mean'):.2f}, "
        f"stale {stale:.3f} / {_mean(found[0], 'stale_share'):.3f}",
    )


def _mean(found: Sequence[Prediction], name: str) -> float:
    return fmean(getattr(one, name) for one in found)


def _print(row: Row) -> None:
    print(
        f"{row.name:18} by {row.profile:8} step_s {row.step_s[0]:.3f} / {row.step_s[1]:.3f} ({row.error(1):+.1%}; own "
        f"trainer {row.error(2):+.1%}), stall {row.stall[0]:.2f} / {row.stall[1]:.2f}, {row.others}",
        file=sys.stderr,
    )


def _largest(errors: Iterable[float]) -> float | None:
    found = [abs(error) for error in errors]
    return round(max(found), 3) if found else None
