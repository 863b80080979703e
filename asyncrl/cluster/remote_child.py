"""A process on another machine, seen through the keeper that started it."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asyncrl import waits
from asyncrl.cluster.base import Failure
from asyncrl.cluster.machines import CallLost, KeeperLost, Unanswered
from asyncrl.errors import WaitTimeout

LOOK_S = 0.1  # between two looks at a process that was asked to stop
PLACING = "cluster waits for room for its processes"


class RemoteChild:
    """A process that a keeper started.

    Args:
        call: calls a method of the keeper.
        answer: see Machines.
        lost: told when the keeper is gone.
    """

    def __init__(
        self,
        role: str,
        log: Path,
        call: Callable[..., Any],
        answer: Callable[[Any], Any],
        lost: Callable[[], None],
        *,
        start_timeout_s: float,
        silence_timeout_s: float,
    ) -> None:
        self.role, self.log = role, log
        self._call, self._answer, self._lost = call, answer, lost
        self._patience_s, self._silence_timeout_s = start_timeout_s, silence_timeout_s
        self._is_up = False
        self._end: tuple[int, str] | None = None
        self._ask()

    def _ask(self) -> None:
        self._asked = self._call("poll", self.role)
        self._asked_s = time.monotonic()

    def exit_code(self) -> int | None:
        """See Child. A process whose machine is lost counts as ended by SIGKILL."""
        if self._end is None:
            self._look()
        return None if self._end is None else self._end[0]

    def _look(self) -> None:
        try:
            ended = self._answer(self._asked)
        except Unanswered as error:
            if isinstance(error, CallLost):
                self._asked = self._call("poll", self.role)
            self._despair(time.monotonic() - self._asked_s)
        except KeeperLost as error:
            self._end = (-signal.SIGKILL, f"{self.role} is lost with what started it: {error}; its log is {self.log}")
            self._lost()
        else:
            self._is_up, self._patience_s = True, self._silence_timeout_s
            if ended is None:
                self._ask()
            else:
                self._end = ended

    def _despair(self, silent_s: float) -> None:
        if silent_s < self._patience_s:
            return
        if self._is_up:
            why = f"{self.role} is lost: its machine has not answered for {silent_s:.0f} s; its log is {self.log}"
            self._end = (-signal.SIGKILL, why)
        else:
            late = WaitTimeout(PLACING, silent_s, self._patience_s, f"{self.role} was not started")
            self._end = (late.exit_code, str(late))
        self._lost()

    def failure(self) -> Failure | None:
        """See Child."""
        self.exit_code()
        if self._end is None or self._end[0] == 0:
            return None
        return Failure(self.role, *self._end)

    def send(self, number: signal.Signals) -> None:
        """See Child."""
        if self.exit_code() is None:
            self._call("send", self.role, int(number))

    async def ended(self, timeout_s: float, name: str) -> bool:
        """See Child."""
        deadline_s = time.monotonic() + timeout_s
        while self.exit_code() is None:
            if time.monotonic() >= deadline_s:
                return False
            await waits.pause(name, LOOK_S)
        return True
