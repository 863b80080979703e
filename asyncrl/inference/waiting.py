"""Requests for which there is no server yet: each waits until there may be one for it.

Hundreds may wait, most of them for a version that no server has yet: with each word of a server only those are woken
which it concerns.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from asyncrl import waits

WAIT = "worker waits for a server at its version"
RECHECK_S = 1.0


@dataclass(slots=True, eq=False)
class Waiter:
    """A request, by what it may be sent to: servers at certain versions; None: whichever, else one by its name."""

    may_start_on: Callable[[int], bool]
    only: str | None
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        """Have it look for a server now."""
        self._woken.set()

    async def until_woken(self, most_s: float) -> None:
        """Wait to be woken, `most_s` seconds at most. An event may be missed: after RECHECK_S it returns anyway."""
        with suppress(TimeoutError):
            async with asyncio.timeout(min(RECHECK_S, most_s)):
                await self._woken.wait()
        self._woken.clear()


class Waiters:
    """The requests of a fleet that wait now. `why` tells why one waits."""

    def __init__(self, why: Callable[[Callable[[int], bool], str | None], str]) -> None:
        self._why = why
        self._waiting: set[Waiter] = set()
        self._reminded_s = 0.0
        self._counted = ExitStack()

    def wake(self, may_go: Callable[[Waiter], bool]) -> None:
        """Wake those that may go on."""
        for waiter in self._waiting:
            if may_go(waiter):
                waiter.wake()

    @contextmanager
    def one_more(self, may_start_on: Callable[[int], bool], only: str | None) -> Iterator[Waiter]:
        """A request that waits in the block. Seconds in which anybody waits count once."""
        waiter = Waiter(may_start_on, only)
        if not self._waiting:
            self._reminded_s = time.monotonic()
            self._counted.enter_context(waits.timed(WAIT, lambda: self._why(may_start_on, only)))
        self._waiting.add(waiter)
        try:
            yield waiter
        finally:
            self._waiting.remove(waiter)
            if not self._waiting:
                self._counted.close()

    def is_reminder_due(self) -> bool:
        """Whether to say again why one waits: once a minute for all of them."""
        if time.monotonic() - self._reminded_s < waits.REMIND_S:
            return False
        self._reminded_s = time.monotonic()
        return True
