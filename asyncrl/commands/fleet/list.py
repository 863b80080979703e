"""The servers of a run: state, since when and why, version, requests, restarts, address. Changes nothing.

States: starting, updating (loads weights), serving, draining, drained (an operator had it leave), asleep (its device
is the trainer's now), failed (out of rotation, the reason says why), lost (no sign of life), awaited (added, and no
host looks after it).
"""

import argparse
import json
from collections.abc import Iterator

from asyncrl.commands.config_arguments import add_config_arguments, load_from
from asyncrl.commands.tables import columns, one_line, span_of_time
from asyncrl.run.roster import Row, rows

NAMES = ("server", "state", "for", "version", "requests", "restarts", "address", "why")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the servers; exit code 4 if none serves."""
    from asyncrl.errors import ServerError
    from asyncrl.run.fleet_orders import open_fleet

    with open_fleet(load_from(args).config) as log:
        found = rows(log)
    print(json.dumps([row.to_json() for row in found]) if args.json else columns(NAMES, cells(found)))
    return 0 if any(row.state == "serving" for row in found) else ServerError.exit_code


def cells(found: list[Row]) -> Iterator[list[str]]:
    """The servers for people."""
    for row in found:
        behind = f" ({row.behind} behind)" if row.behind else ""
        waiting = f" + {row.num_waiting}" if row.num_waiting else ""
        yield [
            row.name,
            row.state,
            span_of_time(row.since_s),
            f"{row.version}{behind}",
            "" if row.num_running is None else f"{row.num_running}{waiting}",
            str(row.num_restarts),
            row.url,
            one_line(row.reason),
        ]
