"""The trainer cluster: against TRL end to end, ranks against one rank, packing, checkpoints beside steps, lending.

    scripts/bench trainer [--only trl,reward,ranks,...] [--peers] [--repeats N]

vs_trl_fixed, vs_trl_heavy_tail   samples a second of separate_async (rollout cluster and trainer, a core each) over
                                  those of TRL's GRPOTrainer on both cores: same model, prompts, group size, learning
                                  rate; median of each turn's ratio
steps_to_reward_over_trl          steps until the mean reward of ten steps is 0.9, from random weights, ours by TRL's:
                                  the mean over seeds
stall_share_fixed, _heavy_tail    share of the trainer's time in those runs in which it waited
ranks2_over_1                     tokens a second of two ranks (FSDP2 over gloo) by those of one, 4 M parameters
packed_over_padded                CPU seconds of a step on padded rows by those on packed ones, heavy-tailed lengths
async_checkpoint_step_share       what a checkpoint in every step adds to a step that it is written beside
lend_wall_ratio                   wall seconds of a generation-bound run with lending by those without, a core a device
resume                            40 steps, again, and 20 + SIGKILL + resume: names of what differs, to be none
The parts that need TRL run with --peers only. Wall seconds on an otherwise idle machine; each part says what it is.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from scripts.benches.trainer_cases import checkpoints, lending, packing, peer, ranks, resume
from scripts.benches.trainer_cases.scenes import FIXED, HEAVY_TAIL, REWARD, make

Figures = dict[str, float | None]
HOME = Path("runs/bench/trainer").resolve()
GOAL = 0.9


def run_trl(options: argparse.Namespace) -> Figures:
    """Samples a second at equal and at heavy-tailed lengths."""
    figures: Figures = {}
    for scene, our_steps, trl_steps in ((FIXED, 120, 40), (HEAVY_TAIL, 60, 15)):
        figures |= peer.compare_speed(
            scene, make(scene, HOME), our_steps=our_steps, trl_steps=trl_steps, repeats=options.repeats
        )
    return figures


def run_reward(options: argparse.Namespace) -> Figures:
    """Steps to a reward, over seeds."""
    figures: Figures = {}
    for seed in range(options.seeds):
        scene = replace(REWARD, seed=seed)
        figures |= peer.compare_learning(scene, make(scene, HOME), reward=GOAL, most_steps=400)
    ratios = [value for name, value in figures.items() if name.startswith("ratio_")]
    known = [value for value in ratios if value is not None]
    figures["steps_to_reward_over_trl"] = round(statistics.fmean(known), 3) if len(known) == len(ratios) else None
    return figures


def run_ranks(options: argparse.Namespace) -> Figures:
    """Two ranks against one."""
    return dict(ranks.compare(HOME, options.repeats, steps=4))


def run_packing(options: argparse.Namespace) -> Figures:
    """Packed rows against padded ones."""
    return packing.measure(turns=options.repeats + 2)


def run_checkpoints(options: argparse.Namespace) -> Figures:
    """Checkpoints beside steps."""
    return dict(checkpoints.measure(turns=4 * options.repeats))


def run_lending(options: argparse.Namespace) -> Figures:
    """Runs with and without lending."""
    return lending.measure(HOME, repeats=options.repeats)


def run_resume(options: argparse.Namespace) -> Figures:
    """A killed run against a straight one."""
    del options
    found = resume.measure()
    print(f"resume: {found}", file=sys.stderr)
    return {f"resume_{name}": float(len(found[name])) for name in ("again_differs", "resumed_differs")}


PARTS: dict[str, Callable[[argparse.Namespace], Figures]] = {
    "trl": run_trl,
    "reward": run_reward,
    "ranks": run_ranks,
    "packing": run_packing,
    "checkpoints": run_checkpoints,
    "lending": run_lending,
    "resume": run_resume,
}
NEED_PEERS = ("trl", "reward")


def main(argv: Sequence[str] = ()) -> Figures:
    """The figures of the parts that were asked for."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench trainer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help=f"some of {', '.join(PARTS)}, with commas; default: all")
    parser.add_argument(
        "--peers", action="store_true", help="also the parts that need TRL, in an environment of its own"
    )
    parser.add_argument("--repeats", type=int, default=3, help="turns; figures are medians over them")
    parser.add_argument("--seeds", type=int, default=3, help="of the steps to a reward")
    options = parser.parse_args(argv)
    chosen = options.only.split(",") if options.only else [p for p in PARTS if options.peers or p not in NEED_PEERS]
    figures: Figures = {}
    for part in chosen:
        figures |= PARTS[part](options)
    return figures
