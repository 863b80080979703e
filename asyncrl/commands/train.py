"""Train: lease groups from the buffer, update the policy, publish weight versions.

Exit codes: 0 finished or stopped on request (go on with --resume), 2 configuration or data, 3 Redis or machine,
5 checkpoint, 6 non-finite numbers, 7 a newer trainer owns the run, 75 waited too long for groups (start again with
--resume).
"""

import argparse

from asyncrl.commands.config_arguments import add_config_arguments, load_from, make_missing
from asyncrl.load_config import to_yaml


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser, mode=True)
    parser.add_argument("--resume", action="store_true", help="go on from the newest complete checkpoint of the run")
    parser.add_argument("--dry-run", action="store_true", help="check everything, start nothing")
    parser.add_argument("--json", action="store_true", help="with --dry-run: print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the trainer cluster to its end."""
    loaded = load_from(args)
    if args.print_config:
        print(to_yaml(loaded))
        return 0
    if args.dry_run:
        from asyncrl.commands.doctor import examine

        return examine(loaded.config, as_json=args.json)
    make_missing(loaded.config)
    from asyncrl.run.train import train

    return train(loaded, resume=args.resume)
