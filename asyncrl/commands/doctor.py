"""Check this machine for a run: packages, Redis, model, data, devices, ports, disk. Exit code 3: something is wrong."""

import argparse

from asyncrl.commands.config_arguments import add_config_arguments, examine, load_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser, mode=True)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the findings."""
    return examine(load_from(args).config, as_json=args.json)
