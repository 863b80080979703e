"""Explore the models: python -m tests.models [model] [case ...] [--large].

Without a case: every broken and every fixed one of the model, or of all. Prints states, CPU seconds and, of what is
found, the shortest trace. Leaves with 1 if a broken case holds or a fixed one does not.
"""

import argparse
import sys
from typing import Any

from tests.models import lag_tree
from tests.models.cases import CASES
from tests.models.explorer import Model, explore, named

LAG_TREE = "lag_tree"


def main(arguments: list[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.models", description="Explore the models of the protocol.")
    parser.add_argument("model", nargs="?", choices=[*CASES, LAG_TREE], help="all of them by default")
    parser.add_argument("case", nargs="*", help="a rule to switch off, or the name of a fixed case")
    parser.add_argument("--large", action="store_true", help="the fixed cases with large bounds: minutes")
    given = parser.parse_args(arguments)
    if given.model == LAG_TREE:
        print(lag_tree.compare(100_000))
        return 0
    num_wrong = num_run = 0
    for name, cases in CASES.items():
        if given.model in (None, name):
            runs = [(f"without {rule}", rule, cases.without(rule), True) for rule in cases.broken]
            runs += [(case, case, cases.model(setting), False) for case, setting in cases.fixed.items()]
            if given.large or given.case:
                runs += [(case, case, cases.model(setting), False) for case, setting in cases.large.items()]
            for label, case, model, is_broken in runs:
                if not given.case or case in given.case:
                    num_run += 1
                    num_wrong += _is_wrong(f"{name}: {label}", model, is_broken)
    if not num_run:
        parser.error(f"no case is named {given.case}; without a name all of them run")
    print(f"{num_wrong} of {num_run} cases are not as they should be")
    return int(num_wrong > 0)


def _is_wrong(label: str, model: Model[Any], is_broken: bool) -> bool:
    found = explore(model)
    print(f"{label}: {found.num_states} states, {found.seconds:.1f} s of CPU", flush=True)
    if not found.is_complete:
        print("    given up: more states than the explorer keeps; nothing is proven")
    elif found.problem is not None:
        print(f"    {found.problem}")
        for place, (step, _) in enumerate(named(model, found), 1):
            print(f"    {place:2} {step}")
    return not found.is_complete or (found.problem is not None) != is_broken


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
