"""One maker at a time: a lock on a file beside what is made, held until the block ends."""

import fcntl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from asyncrl import waits
from asyncrl.errors import WaitTimeout

NAME = "starter waits for its lock"


@contextmanager
def locked(path: Path, deadline_s: float) -> Iterator[None]:
    """Hold an exclusive lock on `path` (created if missing) during the block; the system drops it if we die.

    Raises:
        WaitTimeout: another process held it for `deadline_s` seconds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        if not _taken_at_once(file):
            _wait(file, path, deadline_s)
        yield


def _taken_at_once(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait(file: IO[str], path: Path, deadline_s: float) -> None:
    taken = threading.Event()

    def take() -> None:
        fcntl.flock(file, fcntl.LOCK_EX)
        taken.set()

    # flock has no deadline of its own, so it blocks in a thread that dies with us.
    threading.Thread(target=take, name=NAME, daemon=True).start()
    why = f"Another command of this run makes the model and the data right now and holds {path}."
    with waits.timed(NAME, lambda: why):
        if not taken.wait(deadline_s):
            raise WaitTimeout(NAME, deadline_s, deadline_s, f"{why} If none is running, look for a stuck process.")
