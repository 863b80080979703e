"""Every recipe as a whole run, by the commands that a user types, held to the held-out score that it states.

    scripts/bench recipes [--only NAME ...] [--mode MODE] [--scratch DIR]

Each run takes configs/recipes/NAME.yaml as it is (the starter's model, `serve-rollout` and `train`), in a directory of
its own. Printed as it goes: a table of held-out score before and after, seconds of training, and the verdict. A recipe
has learned if its last score is at least its target; those that have not are named, and are missing in `num_learned`.
Seconds are of this machine, with whatever else runs on it; a score is of one seed.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from scripts.benches.whole_runs import Run, run

RECIPES = Path("configs/recipes")
TARGET = 0.75
TARGETS: Mapping[str, float] = MappingProxyType({"grpo_passk": 0.5, "opd": 0.6, "ppo_gae": 0.5, "text_game": 0.8})
"""Held-out scores that recipes state where they are not TARGET; all begin at about 0.35, text_game at 0.6, tool_agent
at 0.26. opd learns without a reward, ppo_gae trains a critic from nothing beside the policy, and grpo_passk rewards
only the best of a group, not the mean that is scored here."""
ROWS: Mapping[str, str] = MappingProxyType({"grpo_lora": "grpo", "text_game": "grpo", "tool_agent": "grpo"})
"""Recipes that are not named after their row of the table of algorithms: they train it in another way, or in another
environment."""
MAX_TRAINING_S = 180.0
HEADER = "| recipe | before | after | target | training s | |\n| --- | --- | --- | --- | --- | --- |"


def main(argv: Sequence[str] = ()) -> dict[str, float | None]:
    """Run them one after the other; the scores by name, and how many learned."""
    args = _arguments(argv)
    names = args.only or recipes()
    print(HEADER, file=sys.stderr, flush=True)
    figures: dict[str, float | None] = {}
    failed = []
    for name in names:
        found = _whole_run(name, args.mode, args.scratch)
        before, after = (found.summary.get(f"heldout_{when}") for when in ("before", "after"))
        learned = after is not None and after >= target(name)
        figures |= {f"{name}_before": before, f"{name}_after": after, f"{name}_s": round(found.seconds(), 1)}
        print(_line(name, before, after, found.seconds(), learned), file=sys.stderr, flush=True)
        if not learned:
            failed.append(name)
    figures |= {"num_recipes": float(len(names)), "num_learned": float(len(names) - len(failed))}
    if failed:
        print(f"{len(failed)} of {len(names)} did not reach their target: {', '.join(failed)}", file=sys.stderr)
    return figures


def recipes() -> list[str]:
    """The names of all recipes."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def row(name: str) -> str:
    """The row of the table of algorithms that a recipe trains."""
    return ROWS.get(name, name)


def target(name: str) -> float:
    """The held-out score that a recipe states."""
    return TARGETS.get(name, TARGET)


def _whole_run(name: str, mode: str, scratch: Path | None) -> Run:
    config = str(RECIPES / f"{name}.yaml")
    if scratch is not None:
        return run(mode, scratch / name, (), config=config)
    with tempfile.TemporaryDirectory(prefix="asyncrl-recipe-") as directory:
        return run(mode, Path(directory) / name, (), config=config)


def _line(name: str, before: float | None, after: float | None, seconds: float, learned: bool) -> str:
    scores = " | ".join("-" if score is None else f"{score:.3f}" for score in (before, after))
    verdict = "learned" if learned else "NOT LEARNED"
    if seconds > MAX_TRAINING_S:
        verdict += f", more than {MAX_TRAINING_S:.0f} s"
    return f"| {name} | {scores} | {target(name):.2f} | {seconds:.0f} | {verdict} |"


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench recipes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=recipes(), metavar="NAME", help="recipes to run; default: all")
    parser.add_argument("--mode", default="separate_async")
    parser.add_argument("--scratch", type=Path, help="keep the runs' directories here")
    return parser.parse_args(argv)
