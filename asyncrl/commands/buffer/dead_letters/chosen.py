"""The arguments that choose dead letters, and what is said about those that were acted on."""

import argparse
import json
import sys

from asyncrl.commands.tables import listed
from asyncrl.run.dead_letters import Acted, Choice


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Add --ordinals, --reason and --all; exactly one is given."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--ordinals", type=ordinals, metavar="N,N,...", help="these, named with commas")
    which.add_argument("--reason", help="those that died for this reason")
    which.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def ordinals(text: str) -> tuple[int, ...]:
    """Ordinals named with commas; of a gid (17.2) the part before the dot."""
    named = [part.strip().partition(".")[0] for part in text.split(",")]
    if wrong := [part for part in named if not (part.isascii() and part.isdigit())]:
        raise argparse.ArgumentTypeError(f"{', '.join(map(repr, wrong))}: expected ordinals with commas, such as 3,17")
    return tuple(sorted({int(part) for part in named}))


def choice_of(args: argparse.Namespace) -> Choice:
    """What the arguments choose."""
    return Choice(args.ordinals or (), args.reason)


def conclude(args: argparse.Namespace, acted: Acted, *, done: str, unchanged: str) -> int:
    """Print what was done and what was not found; exit code 1 if something that was named was not found."""
    nothing = args.reason is not None and not acted.done and not acted.unchanged
    if args.json:
        print(json.dumps(acted.to_json()))
    else:
        print(f"{len(acted.done)} {done}{shown(acted.done)}")
        if acted.unchanged:
            print(f"{len(acted.unchanged)} {unchanged}{shown(acted.unchanged)}")
    if acted.unknown:
        print(f"not dead letters{shown(acted.unknown)}; `asyncrl buffer dead-letters list` shows them", file=sys.stderr)
    if nothing:
        known = listed(acted.reasons) or "there are none at all"
        print(f"no dead letter has the reason {args.reason!r}: {known}", file=sys.stderr)
    return 1 if acted.unknown or nothing else 0


def shown(numbers: tuple[int, ...]) -> str:
    """Ordinals after a colon; nothing for none."""
    return f": {', '.join(map(str, numbers))}" if numbers else ""
