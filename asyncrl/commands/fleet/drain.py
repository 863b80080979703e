"""Give a server no new requests, let it answer those that it has, and stop it; its host stays, for `restore`.

What is not answered within --within seconds is cut: its episodes go on elsewhere from their tokens.
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
    """Drain a server; returns when it has left."""
    from asyncrl.run.fleet_orders import ask, left, open_fleet

    with open_fleet(load_from(args).config) as log:
        start_s = time.monotonic()
        ask(log, args.server, "leave", within_s=args.within, force=args.force)
        if args.no_wait:
            print(f"{args.server} is asked to leave; `asyncrl fleet list` shows how far it is")
            return 0
        asyncio.run(left(log, args.server, within_s=args.within))
    print(f"{args.server} left after {time.monotonic() - start_s:.1f} s; `asyncrl fleet restore` has it back")
    return 0
