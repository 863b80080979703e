"""The arguments of actions on one server."""

import argparse

from asyncrl.commands.config_arguments import add_config_arguments

WITHIN_S = 60.0


def add_server_arguments(parser: argparse.ArgumentParser, *, waits: bool = False) -> None:
    """Add CONFIG, SERVER and overrides; with `waits` also how long requests may take, and not to wait."""
    add_config_arguments(parser, subject=("server", str, "name of the server, as `asyncrl fleet list` shows it"))
    parser.add_argument("--force", action="store_true", help="also the only server that serves")
    if waits:
        text = f"seconds that its requests get to be answered whole; default {WITHIN_S:g}"
        parser.add_argument("--within", type=_seconds, default=WITHIN_S, metavar="SECONDS", help=text)
        parser.add_argument("--no-wait", action="store_true", help="ask, and do not wait until it is done")


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds from 0")
    return seconds
