"""Close admission: no prompt is started any more; groups in flight finish and the trainer trains what is ready."""

import argparse

from asyncrl.commands.config_arguments import add_config_arguments, load_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Pause; a repeat changes nothing."""
    from asyncrl.run.existing import open_existing

    config = load_from(args).config
    with open_existing(config) as (buffer, _):
        buffer.pause()
        in_flight = buffer.counts()["in_flight"]
    print(f"run {config.run.name} is paused with {in_flight} groups in flight; `asyncrl buffer resume` opens it again")
    return 0
