"""Write a checkpoint, the newest if none is named, as a Hugging Face model directory for transformers and servers.

It may have been written by any number of ranks.
"""

import argparse
import json
from pathlib import Path

from asyncrl.commands.config_arguments import add_config_arguments, load_from
from asyncrl.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser)
    add_choice(parser, "")


def add_choice(parser: argparse.ArgumentParser, of: str) -> None:
    """Which checkpoint, where to, and how it is told."""
    parser.add_argument("--output", type=Path, help=f"{of} directory to make; it must not exist".strip())
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--checkpoint", help=f"{of} its name, or its step, instead of the newest".strip())
    chosen.add_argument("--best", action="store_true", help=f"{of} the one with the highest held-out score".strip())
    parser.add_argument("--json", action="store_true", help="print as JSON")


def run(args: argparse.Namespace) -> int:
    """Export; prints the directory."""
    from asyncrl.run.saved import BEST, export

    if args.output is None:
        raise ConfigError("export needs --output DIR: where the model directory is made.")
    made = export(load_from(args).config, args.output, BEST if args.best else args.checkpoint)
    print(json.dumps(made) if args.json else made["output"])
    return 0
