"""Serve rollouts: start and watch servers, keep their weights current, play prompts into the buffer.

Ctrl-C or SIGTERM stops gracefully (groups in flight are finished or given back), a second one at once.
Exit codes: 0 stopped or the run finished, 2 configuration or data, 3 Redis or machine, 8 a process kept dying.
"""

import argparse

from asyncrl.commands.config_arguments import add_config_arguments, load_from, look, make_missing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser, starts=True)


def run(args: argparse.Namespace) -> int:
    """Run the rollout cluster until it is stopped or the run is finished."""
    loaded = load_from(args)
    looked = look(args, loaded)
    if looked is not None:
        return looked
    make_missing(loaded.config)
    from asyncrl.run.serve_rollout import serve_rollout

    return serve_rollout(loaded)
