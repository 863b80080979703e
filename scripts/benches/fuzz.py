"""Damaged bytes against every decoder that reads what others wrote: how many inputs, what came out, what is wrong.

    scripts/bench fuzz [--inputs N] [--targets payload,partials,ledger,card,frame16,...] [--seed S] [--most-s SECONDS]

Each target gets N inputs: valid ones whose header was taken apart, changed and put together again, or whose bytes were
bent. A decoder may answer, or raise its own errors; what it answers must come out equal when it is encoded and decoded
again. Anything else is a fault: another error, code run or a file opened, memory beyond what the bytes account for, a
message without end. Faults go to stderr with the smallest input found and make the exit code 1.
tests/unit/buffer/test_wire_fuzz.py runs a short form of it; tests/support/fuzz_atheris.py is guided by coverage.
"""

import argparse
import sys
from collections.abc import Sequence

from tests.support.fuzz_loop import fuzz
from tests.support.fuzz_targets import TARGETS


def main(argv: Sequence[str] = ()) -> dict[str, float]:
    """Inputs, seconds, accepted inputs, distinct outcomes, faults and most memory by target."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=100_000, help="for each target")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most-s", type=float, default=3600.0, help="seconds for each target")
    args = parser.parse_args(argv)
    figures: dict[str, float] = {}
    for name in args.targets.split(","):
        report = fuzz(TARGETS[name], seed=args.seed, inputs=args.inputs, deadline_s=args.most_s)
        figures |= {
            f"{name}_inputs": report.inputs,
            f"{name}_s": round(report.seconds, 1),
            f"{name}_accepted": report.outcomes["ok"],
            f"{name}_outcomes": len(report.outcomes),
            f"{name}_most_mib": round(report.most_bytes / 2**20, 2),
            f"{name}_faults": len(report.faults),
        }
        for fault, blob in report.faults.items():
            print(f"{name}: {fault}: {blob.hex()}", file=sys.stderr)
        for outcome, count in report.outcomes.most_common(10):
            print(f"{name}: {count} x {outcome}", file=sys.stderr)
    if any(count for name, count in figures.items() if name.endswith("_faults")):
        print(f"fuzz: {figures}", file=sys.stderr)
        raise SystemExit("fuzz: faults were found, see above.")
    return figures
