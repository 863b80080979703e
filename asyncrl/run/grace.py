"""A rank leaves within the grace time of a stop: in good order if it can, else in time, with its groups given back.

consumes  the stop event, what the loop has at hand     waits for     a stop, then the loop's end
produces  an end of the process, in the worst case      unblocks      the supervisor; workers, by groups given back

The loop cannot be asked while it computes, so a thread beside it watches the clock. What was trained since the newest
checkpoint is lost when a rank leaves like that, as after a kill; unlike after a kill no group counts as one that its
trainer died with, and nothing stays leased.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from asyncrl.run.outcome import Ended, write_outcome
from asyncrl.trainer.at_hand import WorkAtHand
from asyncrl.trainer.flight import Flight
from buffer import ReplayBuffer

log = logging.getLogger(__name__)

LOOK_S = 0.25
RESERVE_S = 5.0
"""Of the grace time, for giving groups back and ending; a quarter of it if that is less."""


class Grace:
    """Watches one rank. A context manager around its loop."""

    def __init__(
        self,
        stop: threading.Event,
        grace_s: float,
        give_back: Callable[[str], object] | None,
        at_hand: WorkAtHand,
        *,
        end_process: Callable[[int], None] = os._exit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is watched yet.

        Args:
            stop: set when a stop is asked for; the grace time begins then.
            give_back: called before the end with the reason; None: of a rank that holds nothing for all. Such a rank
                does not judge what can be finished, and leaves when the time is up.
            at_hand: of the loop, by the same clock.
            end_process: takes the exit code.
        """
        self._stop, self._grace_s, self._give_back, self._at_hand = stop, grace_s, give_back, at_hand
        self._end_process, self._clock = end_process, clock
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="grace", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_S):
            if self._over.is_set():
                return
        deadline_s = self._clock() + self._grace_s - self._reserve_s
        while not self._over.wait(LOOK_S):
            if why := self._too_late(deadline_s):
                self._leave(why)
                return

    def _too_late(self, deadline_s: float) -> str:
        if self._give_back is not None:
            return self._at_hand.too_late(deadline_s)
        return "the time for a stop is up" if self._clock() >= deadline_s + self._reserve_s / 2 else ""

    def _leave(self, why: str) -> None:
        log.warning("leaving before the work at hand is done: %s (trainer.stop_grace_s)", why)
        if self._give_back is not None:
            giving = Flight("give back", partial(self._given_back, self._give_back, why))
            if not giving.wait(self._reserve_s * 0.8):
                log.warning("groups are not given back yet; the next trainer takes them back at its start")
            elif giving.failure is not None:
                log.warning("groups are not given back (%s); the next trainer takes them back", giving.failure)
        self._end_process(0)

    @staticmethod
    def _given_back(give_back: Callable[[str], object], why: str) -> bool:
        give_back(why)
        return True

    @property
    def _reserve_s(self) -> float:
        return min(RESERVE_S, self._grace_s / 4)


def give_back(run_dir: Path, buffer: ReplayBuffer, at_hand: WorkAtHand, why: str) -> None:
    """Return every group that no checkpoint closes, and say how this trainer ended. For rank 0.

    A checkpoint on its way may still be completed meanwhile: what it names is closed wherever it is then.
    """
    if at_hand.branch:
        buffer.give_back(at_hand.branch, at_hand.held)
    write_outcome(run_dir, Ended("left", ended_by="stop", why=why))
