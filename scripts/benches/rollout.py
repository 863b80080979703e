"""The rollout side's own cost: local engine, workers, gateway.

    scripts/bench rollout [--only groups workers scale gateway] [--rounds N]

groups: the local engine by transformers' generate on groups of eight, `vs_generate_32` and `vs_generate_steady`, and
its share of the bare matrix products, `of_matmul_bound_32`. workers: CPU of one worker by 100 concurrent episodes at
50 tokens a second each, `worker_core_share_100`. scale: one worker with 2,000 episodes, `worker_*_2000`. gateway: what
it adds with a thousand sessions, `gateway_p99_ms_1000`. Not shown: real servers, several machines.
"""

import argparse
import sys
from collections.abc import Callable, Sequence

Figures = dict[str, float]


def _groups(rounds: int) -> Figures:
    from scripts.benches.rollout_cases.groups import measure

    return measure(rounds)


def _workers(rounds: int) -> Figures:
    from scripts.benches.rollout_cases.workers import Load, measure

    figures = measure(Load(slots=100, answer_tokens=256, watched_s=30.0))
    return {f"worker_{name.removesuffix('_100')}_100": value for name, value in figures.items() if name != "core_share"}


def _scale(rounds: int) -> Figures:
    from scripts.benches.rollout_cases.workers import Load, measure

    figures = measure(Load(slots=2000, answer_tokens=1024, watched_s=60.0))
    return {f"worker_{name}_2000": value for name, value in figures.items() if name != "core_share_100"}


def _gateway(rounds: int) -> Figures:
    from scripts.benches.rollout_cases.gateway import measure

    return measure()


PARTS: dict[str, Callable[[int], Figures]] = {
    "groups": _groups,
    "workers": _workers,
    "scale": _scale,
    "gateway": _gateway,
}


def main(argv: Sequence[str] = ()) -> Figures:
    """Run the parts one after the other; the figures of all."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench rollout", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=tuple(PARTS))
    parser.add_argument("--rounds", type=int, default=5, help="of the part groups")
    args = parser.parse_args(argv)
    figures: Figures = {}
    for name in args.only:
        found = PARTS[name](args.rounds)
        print(f"{name}: {found}", file=sys.stderr, flush=True)
        figures |= found
    return figures
