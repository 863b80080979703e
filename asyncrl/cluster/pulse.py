"""Signs of life of a process, for whoever started it: a byte a second through a pipe.

A process that ended is seen by its exit code. One that was stopped, frozen or that hangs within a call which lets no
other thread run has none, and those that wait for it would wait as long as their longest wait. One whose threads run
gives its signs whatever it waits for: what it waits for has a deadline of its own.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress

PULSE = "ASYNCRL_PULSE_FD"
BEAT_S = 1.0
MOST_S = 2.0
"""Longest silence that one look counts. Whoever looks may have stood still itself, with all that it started: a job that
its scheduler suspends, for one. Nobody has been silent then."""


class Pulse:
    """What is heard of one process. Its write end is passed to the process, under the name PULSE."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard, self.theirs = os.pipe()
        os.set_blocking(self._heard, False)
        os.set_blocking(self.theirs, False)
        self._looked_s, self._silent_s, self._is_cut = clock(), 0.0, False
        self.close = weakref.finalize(self, os.close, self._heard)
        """Hear no more. Repeating is harmless."""

    def handed_over(self) -> None:
        """The process has its end, or could not be started: nobody else is to hold it."""
        os.close(self.theirs)

    def silent_s(self) -> float:
        """Seconds of silence that were seen; 0 once the process has closed its end, since nothing can be said then."""
        now, heard = self._clock(), self._listen()
        self._silent_s = 0.0 if heard else self._silent_s + min(now - self._looked_s, MOST_S)
        self._looked_s = now
        return self._silent_s

    def _listen(self) -> bool:
        if self._is_cut or not self.close.alive:
            return True
        try:
            heard = os.read(self._heard, 1 << 16)
        except BlockingIOError:
            return False
        self._is_cut = not heard
        return True


def give_pulse() -> None:
    """Give signs of life to whoever started this process, if it asks for them. Call first thing in a child."""
    theirs = os.environ.pop(PULSE, None)
    if theirs is None:
        return
    os.set_inheritable(int(theirs), False)
    threading.Thread(target=_beat, args=(int(theirs),), name="pulse", daemon=True).start()


def _beat(theirs: int) -> None:
    pause = threading.Event()
    with suppress(BrokenPipeError):  # nobody listens any more
        while not pause.wait(BEAT_S):
            with suppress(BlockingIOError):  # nobody has looked for hours
                os.write(theirs, b".")
