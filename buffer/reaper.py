"""python -m buffer.reaper DIRECTORY PID IDLE_S: stops the embedded server whose users are gone without a word.

    users hold `users` -> the last one closes: it stops the server, and this process ends with it
                       -> all are killed: nobody holds it for IDLE_S seconds, so the server is stopped here

A user that is killed stops nothing, and a server with the payloads of a run may fill most of a machine's memory: it
would stay until somebody found it. What it holds is on disk by its end, where the next command starts it again.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Event

from buffer.embedded import lock_now, starting
from buffer.server_process import alive, pid_of, runs, stop

LOOK_S = 60.0
"""Longest time between two looks at the users; a quarter of IDLE_S if that is less."""
_RECHECK_S = 1.0
_never = Event()


def reap(directory: Path, pid: int, idle_s: float) -> None:
    """Return when the server, process `pid`, has ended, by whoever; stop it once nobody has used it for `idle_s`
    seconds.

    Raises:
        ServerLost: it does not end.
    """
    idle_since_s = time.monotonic()
    server = _Server(directory, pid)
    while not server.ended_within(min(LOOK_S, idle_s / 4)):
        try:
            # The lock is taken beside nobody else: a user who closes would take it for another user's.
            with starting(directory), (directory / "users").open("a") as users:
                if pid_of(directory) != pid:
                    return
                if not lock_now(users):
                    idle_since_s = time.monotonic()
                elif time.monotonic() - idle_since_s >= idle_s:
                    stop(directory)
                    return
        except FileNotFoundError:
            if runs(pid, directory):  # the directory was deleted, and nobody will find its server again
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            return


class _Server:
    """The server's process, for a wait until it ends."""

    def __init__(self, directory: Path, pid: int) -> None:
        self._directory, self._handle = directory, -1
        with suppress(AttributeError, OSError):  # no such call here, or it has ended
            self._handle = os.pidfd_open(pid)

    def ended_within(self, seconds: float) -> bool:
        """Whether it has, `seconds` from now at the latest."""
        if self._handle >= 0:
            return bool(select.select([self._handle], [], [], seconds)[0])
        deadline_s = time.monotonic() + seconds
        while (lives := alive(self._directory)) and time.monotonic() < deadline_s:
            _never.wait(min(_RECHECK_S, seconds))
        return not lives


if __name__ == "__main__":
    reap(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
