"""The table of commands; nothing heavy is imported before one is chosen."""

import argparse
import importlib
import keyword
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Protocol, cast

from asyncrl import __version__
from asyncrl.errors import AsyncrlError, is_for_the_user

COMMANDS: dict[str, str] = {
    "train": "train: lease groups, update the policy, publish versions",
    "serve-rollout": "generate: servers and workers that play prompts into the buffer",
    "gateway": "let harnesses play: OpenAI's and Anthropic's protocols over the policy, a session a trajectory",
    "starter": "make the tiny model and its data that a config describes",
    "eval": "score a model on the held-out prompts",
    "export": "write a checkpoint as a Hugging Face model directory",
    "checkpoint": "list, verify or export the checkpoints of a run",
    "check-data": "say which rows of data files are usable, and why others are not",
    "data": "make data files of public data sets; see which prompts were drawn and why",
    "doctor": "check this machine, Redis, model, data and devices for a run",
    "tune": "predict other limits, policies and splits from a run, and recommend one",
    "launch": "write what Kubernetes, Slurm or SkyPilot need to run both commands",
    "sweep": "train seeded variants of a run, and tabulate quality against throughput",
    "audit": "prove that no prompt was lost or trained twice",
    "buffer": "operate the replay buffer: status, pause, drain, export, import, dead letters",
    "tools": "try the tools of a configuration without a model: list them, call one",
    "fleet": "operate the servers: list, add, drain, remove, replace, restore",
    "stop": "ask both clusters of a run to stop",
}
"""Command -> what it does. Each is the file of its name in asyncrl/commands, or a folder of actions: see `Family`."""

INTERRUPTED, TERMINATED = 130, 143  # 128 + SIGINT, 128 + SIGTERM, as shells count


class Terminated(KeyboardInterrupt):
    """SIGTERM, for a command that has not said yet what it does about it: it unwinds, as by Ctrl-C."""


class Command(Protocol):
    """What a file in asyncrl/commands offers."""

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


class Family(Protocol):
    """What a folder in asyncrl/commands offers: a table of actions like COMMANDS, each a file or folder in it."""

    ACTIONS: dict[str, str]


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
        with _unwinding():
            _stop_with_starter()
            return run(f"asyncrl {name}", "asyncrl.commands", name, arguments[1:])
    except Terminated:
        print("asyncrl: terminated", file=sys.stderr)
        return TERMINATED
    except KeyboardInterrupt:
        print("asyncrl: interrupted", file=sys.stderr)
        return INTERRUPTED
    except AsyncrlError as error:
        _complain(name, error)
        return error.exit_code
    except Exception as error:
        if not is_for_the_user(error):
            raise
        _complain(name, error)
        return 3


def _complain(name: str, error: Exception) -> None:
    """The last thing that a command says, also where both outputs are one file: what was printed stands before it."""
    sys.stdout.flush()
    print(f"asyncrl {name}: {error}", file=sys.stderr)


def _stop_with_starter() -> None:
    if "ASYNCRL_STARTED_BY" in os.environ:  # few have it, and what is imported then is not for `asyncrl --help`
        from asyncrl.cluster import stop_with_starter

        stop_with_starter()


@contextmanager
def _unwinding() -> Iterator[None]:
    """SIGTERM unwinds the command: left to the system, it would end it with what it has started still running."""

    def terminate(_number: int, _frame: FrameType | None) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():  # Python's handlers are the main thread's
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(prog: str, package: str, name: str, arguments: Sequence[str]) -> int:
    """Run the command `name` of `package`, or the action of it that comes next in `arguments`."""
    module = importlib.import_module(f"{package}.{module_of(name)}")
    parser = argparse.ArgumentParser(
        prog=prog, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if not hasattr(module, "ACTIONS"):
        command = cast(Command, module)
        command.add_arguments(parser)
        return command.run(parser.parse_intermixed_args(arguments))
    actions = cast(Family, module).ACTIONS
    parser.epilog = f"{rows(actions)}\n\n{prog} ACTION --help says more"
    parser.add_argument("action", choices=actions, metavar="ACTION", help="what to do, see below")
    action = parser.parse_args(arguments[:1]).action
    return run(f"{prog} {action}", module.__name__, action, arguments[1:])


def module_of(name: str) -> str:
    """The module of a command: a dash becomes '_', and a word of the language gets one behind it."""
    return f"{name}_" if keyword.iskeyword(name) else name.replace("-", "_")


def overview() -> str:
    """The list of commands."""
    return f"usage: asyncrl COMMAND ... (asyncrl COMMAND --help says more)\n\n{rows(COMMANDS)}"


def rows(table: Mapping[str, str]) -> str:
    """A table of commands for people."""
    width = max(map(len, table))
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in table.items())
