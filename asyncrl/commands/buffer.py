"""Look at the replay buffer of a run, or close and open its admission.

status: groups by state, and why admission is closed. pause: no prompt is started any more; groups in flight finish.
resume: prompts are started again.
"""

import argparse
import json

from asyncrl.commands.config_arguments import add_config_arguments, load_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("action", choices=("status", "pause", "resume"))
    add_config_arguments(parser)
    parser.add_argument("--json", action="store_true", help="status as JSON")


def run(args: argparse.Namespace) -> int:
    """Do the one action."""
    from asyncrl.run.connections import open_buffer

    with open_buffer(load_from(args).config) as buffer:
        if args.action == "pause":
            buffer.pause()
        elif args.action == "resume":
            buffer.resume()
        counts = buffer.counts()
    print(json.dumps(counts) if args.json else "\n".join(f"{state:<12} {count}" for state, count in counts.items()))
    return 0
