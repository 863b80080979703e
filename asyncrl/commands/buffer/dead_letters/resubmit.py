"""Play dead prompts again, from the prompt, with all their attempts before them. Their payloads go.

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
    """Resubmit."""
    from asyncrl.run.dead_letters import act
    from asyncrl.run.existing import open_existing

    with open_existing(load_from(args).config) as (buffer, _):
        acted = act(buffer, choice_of(args), buffer.resubmit, needs_payload=False)
    return conclude(
        args, acted, done="wait to be played again", unchanged="were resubmitted by somebody else meanwhile"
    )
