"""Open admission again: undoes pause and drain, and takes a request to stop back."""

import argparse

from asyncrl.commands.buffer.status import WHY_CLOSED
from asyncrl.commands.config_arguments import add_config_arguments, load_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Resume; a repeat changes nothing."""
    from asyncrl.run.existing import open_existing

    config = load_from(args).config
    with open_existing(config) as (buffer, _):
        buffer.resume()
        status = buffer.status()
    print(f"run {config.run.name} starts prompts again")
    for reason in status.closed:
        print(f"not yet: {reason}: {WHY_CLOSED[reason](status)}")
    return 0
