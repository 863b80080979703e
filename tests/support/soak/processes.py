"""What the processes of a soak have in common: how they end, and that none outlives the driver."""

import os
import signal
import sys
from collections.abc import Callable
from multiprocessing import parent_process
from pathlib import Path
from threading import Event

from buffer import Behind, Fenced, ServerLost
from tests.support.soak.journal import Journal
from tests.support.soak.settings import Settings

DONE, BROKEN, FENCED, BEHIND, LOST, STUCK = 0, 1, 3, 4, 5, 6
ENDS: dict[type[BaseException], tuple[int, str]] = {
    Fenced: (FENCED, "fenced"),
    Behind: (BEHIND, "behind"),
    ServerLost: (LOST, "server_lost"),
}
"""What may end a process by itself -> its exit code, its event."""


class Stop:
    """Set by SIGTERM."""

    def __init__(self) -> None:
        self._event = Event()
        signal.signal(signal.SIGTERM, lambda *_: self._event.set())

    def is_set(self) -> bool:
        """Whether to leave in good order; also when the driver is gone."""
        parent = parent_process()
        return self._event.is_set() or (parent is not None and not parent.is_alive())

    def wait(self, seconds: float) -> bool:
        return self._event.wait(seconds)


def run(work: Callable[[Journal, Stop], None], settings: Settings, who: str) -> None:
    """Do the work of a process to its end, and leave with the code that says how."""
    errors = os.open(settings.work / f"{who.partition('#')[0]}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(errors, sys.stderr.fileno())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's
    journal, stop = Journal(settings.journal, who), Stop()
    try:
        work(journal, stop)
    except tuple(ENDS) as error:
        code, what = ENDS[type(error)]
        journal.write(what, error=str(error))
        sys.exit(code)


def log_of(work: Path, who: str) -> str:
    """The end of what a process wrote before it broke."""
    path = work / f"{who.partition('#')[0]}.log"
    return path.read_text(errors="replace")[-3000:] if path.exists() else ""
