"""Drop the payloads of dead letters: their bytes go, what is known of the deaths stays. This cannot be undone.

Exit codes: 0 done, also where nothing was left to do; 1 a named ordinal is no dead letter, or no letter has the reason.
"""

import argparse

from asyncrl.commands.buffer.dead_letters.chosen import add_choice, choice_of, conclude
from asyncrl.commands.config_arguments import add_config_arguments, load_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser)
    add_choice(parser)


def run(args: argparse.Namespace) -> int:
    """Purge."""
    from asyncrl.run.dead_letters import act
    from asyncrl.run.existing import open_existing

    with open_existing(load_from(args).config) as (buffer, _):
        acted = act(buffer, choice_of(args), buffer.purge, needs_payload=True)
    return conclude(args, acted, done="payloads dropped", unchanged="had no payload any more")
