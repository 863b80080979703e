"""Sweeps a ledger now and then while the trainer waits, so that lost claims end although no worker is refused."""

import time
from collections.abc import Callable

from buffer import ReplayBuffer

EVERY_S = 5.0  # a claim lives a minute; a sweep costs the server a page of keys


class Sweeper:
    """Calls `sweep` at most once in EVERY_S seconds."""

    def __init__(self, buffer: ReplayBuffer, clock: Callable[[], float] = time.monotonic) -> None:
        self._buffer, self._clock = buffer, clock
        self._last_s = -EVERY_S

    def sweep(self) -> None:
        """Sweep if it is time."""
        now_s = self._clock()
        if now_s - self._last_s >= EVERY_S:
            self._last_s = now_s
            self._buffer.sweep()
