"""kill -9 soak of the replay buffer: 8 producers, a trainer and its rivals, a server, all of them killed at random.

    scripts/bench soak [--minutes N] [--seeds 0,1,...] [--keep]

Every soak ends with a drain and a judgement: each ordinal in exactly one terminal state, none trained twice on the
surviving lineage, no payload left behind, the books and the token ledger in order. `violations` must be 0; each is
printed. The seed picks the prompts, the schedule of faults and the staleness policy; the timing is that of real
processes, so no two runs are alike. It does not show a network, a cluster of servers, or groups of more than 1 MB.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from tests.support.soak.soak import soak


def main(argv: Sequence[str] = ()) -> dict[str, Any]:
    """Figures by seed, and the number of violations of all; these are printed as they are found."""
    parser = argparse.ArgumentParser(prog="scripts/bench soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="minutes of faults, for each seed")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--keep", action="store_true", help="keep the files of a soak with violations")
    args = parser.parse_args(argv)
    figures: dict[str, Any] = {"violations": 0}
    for seed in map(int, args.seeds.split(",")):
        report = soak(seed, 60 * args.minutes, keep=args.keep)
        for violation in report.violations:
            print(f"seed {seed}: {violation}", file=sys.stderr)
        figures["violations"] += len(report.violations)
        figures[f"seed_{seed}"] = {**report.figures, "faults": dict(sorted(report.faults.items()))}
    return figures
