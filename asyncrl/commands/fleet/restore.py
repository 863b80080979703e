"""Have a server back that was drained or removed: its host starts it again, and brings it to head."""

import argparse

from asyncrl.commands.config_arguments import add_config_arguments, load_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser, subject=("server", str, "name of the server, as `asyncrl fleet list` shows it"))


def run(args: argparse.Namespace) -> int:
    """Take back what was asked of the server."""
    from asyncrl.run.fleet_orders import open_fleet, restore

    with open_fleet(load_from(args).config) as log:
        restore(log, args.server)
    print(f"{args.server} is wanted back; `asyncrl fleet list` shows how far it is")
    return 0
