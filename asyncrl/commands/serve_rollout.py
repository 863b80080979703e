"""Serve rollouts: start and watch servers, keep their weights current, play prompts into the buffer.

Ctrl-C or SIGTERM stops gracefully (groups in flight are finished or given back), a second one at once.
Exit codes: 0 stopped or the run finished, 2 configuration or data, 3 Redis or machine, 8 a process kept dying.
"""

import argparse

from asyncrl.commands.config_arguments import add_config_arguments, load_from, make_missing
from asyncrl.load_config import to_yaml


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser)
    parser.add_argument("--dry-run", action="store_true", help="check everything, start nothing")
    parser.add_argument("--json", action="store_true", help="with --dry-run: print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the rollout cluster until it is stopped or the run is finished."""
    loaded = load_from(args)
    if args.print_config:
        print(to_yaml(loaded))
        return 0
    if args.dry_run:
        from asyncrl.commands.doctor import examine

        return examine(loaded.config, as_json=args.json)
    make_missing(loaded.config)
    from asyncrl.run.serve_rollout import serve_rollout

    return serve_rollout(loaded)
