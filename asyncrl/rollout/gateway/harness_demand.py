"""Sessions of reserved groups, given to the harnesses that ask; prompts are reserved when one asks, not ahead."""

import asyncio
from collections import deque
from contextlib import suppress

from asyncrl import waits
from asyncrl.rollout.gateway.session import Session
from asyncrl.rollout.pacing import Slots

WAIT = "harness waits for a session"
OFFER_S = 2.0  # longest time between a reservation and the first session of its group


class HarnessDemand(Slots):
    """Slots of a worker that are only filled while a harness waits for a session.

    A prompt that is reserved long before somebody plays it would be born stale, and be held from other workers.
    """

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots)
        self._offers: deque[tuple[Session, asyncio.Future[None]]] = deque()
        self._num_asking = 0
        self._changes: list[asyncio.Future[None]] = []
        self._first_offer: asyncio.Event | None = None

    @property
    def num_asking(self) -> int:
        """Harnesses that wait."""
        return self._num_asking

    @property
    def num_offered(self) -> int:
        """Sessions that nobody has taken yet."""
        return len(self._offers)

    async def room(self) -> bool:
        """Wait until a slot is free and more harnesses wait than there are sessions for. False once closed."""
        if self._first_offer is not None:  # what was reserved last comes to be offered now
            with suppress(TimeoutError):
                async with asyncio.timeout(OFFER_S):
                    await self._first_offer.wait()
        while not self._closed and self._num_asking <= len(self._offers):
            await self._change()
        self._first_offer = asyncio.Event()
        return await super().room()

    def close(self) -> None:
        """No further group will start."""
        super().close()
        if self._first_offer is not None:
            self._first_offer.set()
        self._tell()

    async def offer(self, session: Session, deadline_s: float) -> None:
        """Give a session to a harness that waits, or to the next one that asks.

        Raises:
            TimeoutError: nobody took it within `deadline_s` seconds.
        """
        if self._first_offer is not None:
            self._first_offer.set()
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._offers.append((session, taken))
        self._tell()
        try:
            async with asyncio.timeout(deadline_s):
                await taken
        finally:
            with suppress(ValueError):
                self._offers.remove((session, taken))

    async def take(self, wait_s: float) -> Session:
        """The next session for a harness. It is taken in the moment in which this returns, and never without.

        Raises:
            TimeoutError: there was none within `wait_s` seconds, or there will be none any more.
        """
        self._num_asking += 1
        self._tell()
        try:
            with waits.timed(WAIT, lambda: f"{self._num_asking} harnesses wait"):
                async with asyncio.timeout(wait_s):
                    while not self._offers:
                        if self._closed:
                            raise TimeoutError
                        await self._change()
        finally:
            self._num_asking -= 1
        session, taken = self._offers.popleft()
        taken.set_result(None)
        return session

    async def _change(self) -> None:
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changes.append(change)
        await change

    def _tell(self) -> None:
        changes, self._changes = self._changes, []
        for change in changes:
            if not change.done():
                change.set_result(None)
