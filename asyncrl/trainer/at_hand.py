"""What a stop has to know of a loop that computes: the step under way, how long steps take, the groups it holds."""

import time
from collections import deque
from collections.abc import Callable, Collection
from threading import Lock
from typing import Protocol

REMEMBERED = 5
"""Steps whose longest says how long the one under way may take."""


class Saving(Protocol):
    """The part of Saver that is asked."""

    @property
    def not_saved(self) -> Collection[int]: ...
    @property
    def last_write_s(self) -> float: ...


class NothingToSave:
    """Before the loop has begun."""

    not_saved: Collection[int] = ()
    last_write_s = 0.0


class WorkAtHand:
    """Told by the loop, read by another thread.

    Attributes:
        branch: that the trainer opened; 0 before.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, Lock()
        self._seconds: deque[float] = deque(maxlen=REMEMBERED)
        self._began_s: float | None = None
        self._in_step: frozenset[int] = frozenset()
        self._saving: Saving = NothingToSave()
        self.branch = 0

    def open(self, branch: int, saving: Saving) -> None:
        """The loop begins."""
        with self._lock:
            self.branch, self._saving = branch, saving

    def step_begins(self, ordinals: Collection[int]) -> None:
        """The groups of a step are trained from now on."""
        with self._lock:
            self._began_s, self._in_step = self._clock(), frozenset(ordinals)

    def step_ended(self) -> None:
        """They are trained, and `not_saved` names them."""
        with self._lock:
            if self._began_s is not None:
                self._seconds.append(self._clock() - self._began_s)
            self._began_s, self._in_step = None, frozenset()

    @property
    def held(self) -> list[int]:
        """Ordinals that the ledger calls leased and that no checkpoint closes."""
        with self._lock:
            return sorted({*self._in_step, *self._saving.not_saved})

    def too_late(self, deadline_s: float) -> str:
        """Why the loop cannot end in good order by `deadline_s`, of the clock; empty as long as it can.

        A step is given up early only if steps were measured, and one of the usual length, with a checkpoint behind it,
        would end past the deadline.
        """
        with self._lock:
            now_s = self._clock()
            if now_s >= deadline_s:
                return "the time for a stop is up"
            if self._began_s is None or not self._seconds:
                return ""
            usual_s, since_s, save_s = max(self._seconds), now_s - self._began_s, self._saving.last_write_s
            if since_s < usual_s and now_s + (usual_s - since_s) + save_s > deadline_s:
                return (
                    f"the step under way takes {usual_s:.0f} s as a rule and a checkpoint {save_s:.0f} s; it began "
                    f"{since_s:.0f} s ago, and {deadline_s - now_s:.0f} s are left"
                )
            return ""
