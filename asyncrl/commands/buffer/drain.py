"""Close admission and wait until no group is in flight: before maintenance of Redis, or of the rollout cluster.

Claims of workers that died end when they expire (buffer.claim_s). What is ready stays for the trainer. The run stays
paused, also after Ctrl-C and when the deadline passes; `asyncrl buffer resume` opens it again.

Exit codes: 0 drained; 75 the deadline passed with groups in flight; 130 interrupted.
"""

import argparse
import asyncio
import json
import sys

from asyncrl.commands.config_arguments import add_config_arguments, load_from
from asyncrl.commands.tables import listed
from asyncrl.errors import WaitTimeout

STAYS = "the run stays paused; `asyncrl buffer resume` opens it again"
INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser)
    parser.add_argument("--deadline", type=float, default=600.0, metavar="S", help="seconds to wait (default 600)")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON; progress goes to stderr")


def run(args: argparse.Namespace) -> int:
    """Drain."""
    from asyncrl.run.drain import Drain
    from asyncrl.run.existing import open_existing

    config = load_from(args).config
    with open_existing(config) as (buffer, _):
        drain, code = Drain(buffer, lambda line: print(line, file=sys.stderr)), 0
        try:
            asyncio.run(drain.run(args.deadline))
        except WaitTimeout as late:
            print(f"{late}\n{STAYS}", file=sys.stderr)
            code = late.exit_code
        except KeyboardInterrupt:
            print(f"interrupted; {STAYS if drain.paused else 'the run was not paused yet'}", file=sys.stderr)
            return INTERRUPTED
        counts = buffer.counts()
    left = {state: counts[state] for state in ("in_flight", "ready", "leased", "waiting")}
    if args.json:
        print(json.dumps({"drained": code == 0, "paused": True, **left}))
    elif code == 0:
        print(f"run {config.run.name} is drained: {listed(left)}; {STAYS}")
    return code
