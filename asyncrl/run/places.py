"""Which serve-rollout of a run this is on its machine: a second one's servers need names of their own.

Two servers of one name would each take the other for a start of its own that is over, and end it.
"""

import fcntl
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncrl.errors import PreflightError

MOST = 64


@contextmanager
def own_place(run_dir: Path) -> Iterator[int]:
    """The lowest number that no other one of this run on this machine has, from 0; held for the block, by a file lock
    that ends with the process.

    Raises:
        PreflightError: there are too many.
    """
    directory = run_dir / "rollout"
    directory.mkdir(parents=True, exist_ok=True)
    for place in range(MOST):
        with (directory / f"place-{socket.gethostname()}-{place}.lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield place
            return
    raise PreflightError(
        f"{MOST} serve-rollout of this run are on this machine: see the locks in {directory}. Stop some, or raise "
        "inference.servers and rollout.workers of one instead."
    )
