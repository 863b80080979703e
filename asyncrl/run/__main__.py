"""python -m asyncrl.run ROLE: the entry of every child process; started by asyncrl.cluster, not by people."""

import argparse
import importlib
import logging
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from asyncrl.cluster import die_with_parent, give_pulse, leave_reason
from asyncrl.errors import AsyncrlError, is_for_the_user

ROLES = {
    "trainer-rank": "asyncrl.run.trainer_rank",
    "rollout-worker": "asyncrl.run.rollout_worker",
    "server-host": "asyncrl.run.server_host",
    "teacher-server": "asyncrl.run.teacher_server",
}
BUG = 1
MACHINE = 3  # a bridge's own error: Redis refused, lost, or holds something else


def main(argv: Sequence[str]) -> int:
    """Run one role; a failure leaves its reason where the parent finds it, and its trace in the log."""
    die_with_parent()
    give_pulse()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stdout, force=True
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    parser = argparse.ArgumentParser(prog="python -m asyncrl.run")
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--url", default="")
    parser.add_argument("--name", default="")
    parser.add_argument("--place", type=int, default=0)
    parser.add_argument("--lent", action="store_true")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--held-out", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args(argv)
    role: Callable[[argparse.Namespace], int] = importlib.import_module(ROLES[args.role]).main
    try:
        return role(args)
    except AsyncrlError as error:
        return fail(str(error), error.exit_code)
    except Exception as error:
        known = is_for_the_user(error)
        return fail(str(error) if known else f"{type(error).__name__}: {error}", MACHINE if known else BUG)


def fail(message: str, exit_code: int) -> int:
    """Log the trace, leave the message for the parent, give the exit code back."""
    traceback.print_exc(file=sys.stdout)
    leave_reason(message, exit_code)
    return exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
