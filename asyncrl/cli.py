"""The table of commands; nothing heavy is imported before one is chosen."""

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from asyncrl import __version__
from asyncrl.errors import AsyncrlError, is_for_the_user

COMMANDS: dict[str, str] = {
    "train": "train: lease groups, update the policy, publish versions",
    "serve-rollout": "generate: servers and workers that play prompts into the buffer",
    "starter": "make the tiny model and its data that a config describes",
    "eval": "score a model on the held-out prompts",
    "export": "write a checkpoint as a Hugging Face model directory",
    "checkpoint": "list or verify the checkpoints of a run",
    "check-data": "say which rows of data files are usable, and why others are not",
    "doctor": "check this machine, Redis, model, data and devices for a run",
    "audit": "prove that no prompt was lost or trained twice",
    "buffer": "status of the replay buffer; pause and resume admission",
    "stop": "ask both clusters of a run to stop",
}
"""Command -> what it does. Each is the file of its name in asyncrl/commands."""

INTERRUPTED = 130  # 128 + SIGINT, as shells count


class Command(Protocol):
    """What a file in asyncrl/commands offers."""

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. An error meant for the user becomes one message on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(overview())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(f"asyncrl {__version__}")
        return 0
    name = arguments[0]
    if name not in COMMANDS:
        print(f"asyncrl: there is no command {name!r}\n\n{overview()}", file=sys.stderr)
        return 2
    try:
        command = cast(Command, importlib.import_module(f"asyncrl.commands.{name.replace('-', '_')}"))
        parser = argparse.ArgumentParser(
            prog=f"asyncrl {name}",
            description=command.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(parser)
        return command.run(parser.parse_intermixed_args(arguments[1:]))
    except KeyboardInterrupt:
        print("asyncrl: interrupted", file=sys.stderr)
        return INTERRUPTED
    except AsyncrlError as error:
        print(f"asyncrl {name}: {error}", file=sys.stderr)
        return error.exit_code
    except Exception as error:
        if not is_for_the_user(error):
            raise
        print(f"asyncrl {name}: {error}", file=sys.stderr)
        return 3


def overview() -> str:
    """The list of commands."""
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    return f"usage: asyncrl COMMAND ... (asyncrl COMMAND --help says more)\n\n{rows}"
