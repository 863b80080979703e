"""Take a server out at once: its requests are answered as far as they are, and go on elsewhere.

One that was added is let go of for good. One that is lost is taken off the list. Any other can be had back: `restore`.
"""

import argparse
import asyncio

from asyncrl.commands.config_arguments import load_from
from asyncrl.commands.fleet.subject import add_server_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_server_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Remove a server."""
    from asyncrl.run.fleet_orders import open_fleet, remove

    with open_fleet(load_from(args).config) as log:
        print(asyncio.run(remove(log, args.server, force=args.force)))
    return 0
