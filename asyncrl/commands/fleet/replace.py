"""Let a server run empty as `drain` does, and start it again: another process, the same name, at head.

A server that somebody else runs is only let go of for a moment and looked at anew; its owner starts it again.
"""

import argparse
import asyncio
import time

from asyncrl.commands.config_arguments import load_from
from asyncrl.commands.fleet.subject import add_server_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_server_arguments(parser, waits=True)


def run(args: argparse.Namespace) -> int:
    """Replace a server; returns when its next life serves."""
    from asyncrl.run.fleet_orders import open_fleet, replace

    config = load_from(args).config
    with open_fleet(config) as log:
        start_s = time.monotonic()
        waiting = replace(
            log,
            args.server,
            within_s=args.within,
            start_s=config.inference.start_timeout_s,
            force=args.force,
            wait=not args.no_wait,
        )
        version = asyncio.run(waiting)
    if version is None:
        print(f"{args.server} is asked to be replaced; `asyncrl fleet list` shows how far it is")
    else:
        print(f"{args.server} was replaced and serves {version} after {time.monotonic() - start_s:.1f} s")
    return 0
