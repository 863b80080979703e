"""List the checkpoints of a run, or verify every byte of them. Exit code 5 if one that is complete is damaged."""

import argparse
import json

from asyncrl.commands.config_arguments import add_config_arguments, load_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("action", choices=("list", "verify"))
    add_config_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print as JSON")


def run(args: argparse.Namespace) -> int:
    """List or verify."""
    from asyncrl.run.saved import describe_checkpoints

    rows = describe_checkpoints(load_from(args).config, verify=args.action == "verify")
    if args.json:
        print(json.dumps(rows))
    else:
        print("\n".join(f"{row['path']}  step {row['step']}  version {row['version']}  {row['state']}" for row in rows))
    return 5 if any(row["state"].startswith("damaged") for row in rows) else 0
