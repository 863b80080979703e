"""Convert the public files of a data set to Parquet in verl's schema, one file a split.

Rows come in the order of the files; the same files give the same bytes. A record that makes no row is named with its
file and line, and nothing is written unless --leave-out says so. Every written file is read back as a run would.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from asyncrl.data.converters import CONVERTERS
from asyncrl.errors import DataError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("dataset", choices=CONVERTERS, metavar="DATASET", help=f"one of {', '.join(CONVERTERS)}")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE_OR_DIR", help="its public files")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for <split>.parquet")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the converter; may be repeated"
    )
    parser.add_argument("--leave-out", action="store_true", help="leave records out that make no row; they are counted")
    parser.add_argument(
        "--check-rewards", action="store_true", help="score each row's own solution, and name those that are not 1"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.epilog = "\n".join(_described())


def run(args: argparse.Namespace) -> int:
    """Convert, and say what was written. Exit code 2: a solution of the data set's own is not scored 1."""
    from asyncrl.commands.data.own_solutions import wrong_solutions
    from asyncrl.data.prepare import prepare

    prepared = prepare(CONVERTERS[args.dataset], args.source, args.out, settings_of(args.set), leave_out=args.leave_out)
    rows = [row for _, of_split in prepared.files.values() for row in of_split]
    wrong = wrong_solutions(rows) if args.check_rewards else None
    if args.json:
        print(json.dumps({**prepared.to_json(), "wrong": None if wrong is None else wrong.to_json()}))
    else:
        for path, of_split in prepared.files.values():
            print(f"wrote {path}: {len(of_split)} rows")
        if prepared.unusable.total:
            print("\n".join([f"left out: {prepared.unusable.total}", *prepared.unusable.lines()]))
        if wrong is not None:
            print("\n".join([f"solutions that are not scored 1: {wrong.total}", *wrong.lines()]))
    return DataError.exit_code if wrong is not None and wrong.total else 0


def settings_of(texts: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE by name. Raises DataError: one is not written so."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise DataError(f"--set {text!r} is not written NAME=VALUE.")
        found[name] = value
    return found


def _described() -> list[str]:
    lines = []
    for name, converter in CONVERTERS.items():
        lines.append(f"  {name}: {converter.description}")
        lines += [f"      --set {setting}=...: {text}" for setting, text in converter.settings.items()]
    return lines
