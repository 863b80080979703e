"""Ask both clusters of a run to stop: workers finish or give back their groups, the trainer saves and leaves.

It finishes its step first where that is possible within trainer.stop_grace_s.
"""

import argparse

from asyncrl.commands.config_arguments import add_config_arguments, load_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Set the run's stop flag; both sides obey it, whichever machine they are on."""
    from asyncrl.run.connections import open_buffer

    config = load_from(args).config
    with open_buffer(config) as buffer:
        buffer.stop()
    within = f"its trainer leaves within {config.trainer.stop_grace_s:g} s (trainer.stop_grace_s)"
    print(f"run {config.run.name} is asked to stop, {within}; `asyncrl train ... --resume` goes on with it")
    return 0
