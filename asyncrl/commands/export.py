"""Write the newest checkpoint of a run as a Hugging Face model directory that transformers and servers load."""

import argparse
from pathlib import Path

from asyncrl.commands.config_arguments import add_config_arguments, load_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser)
    parser.add_argument("--output", type=Path, required=True, help="directory to make; it must not exist")


def run(args: argparse.Namespace) -> int:
    """Export; prints the directory."""
    from asyncrl.run.saved import export_newest

    print(export_newest(load_from(args).config, args.output))
    return 0
