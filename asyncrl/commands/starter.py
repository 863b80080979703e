"""Make what the `starter:` section of a config describes: a tiny model, its tokenizer and its data files."""

import argparse

from asyncrl.commands.config_arguments import add_config_arguments, load_from
from asyncrl.errors import ConfigError
from asyncrl.starter import make


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Make what is missing; says what it made."""
    config = load_from(args).config
    if config.starter is None:
        raise ConfigError(
            f"{args.config} has no `starter:` section, so there is nothing to make. See configs/tiny_cpu.yaml."
        )
    made = make(config)
    print("\n".join(f"made {what}" for what in made) if made else "everything is there already")
    return 0
