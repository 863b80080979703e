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
        self._asking: deque[asyncio.Future[Session]] = deque()
        self._changed = asyncio.Event()
        self._first_offer: asyncio.Event | None = None

    @property
    def num_asking(self) -> int:
        """Harnesses that wait."""
        return len(self._asking)

    @property
    def num_offered(self) -> int:
        """Sessions that nobody has taken yet."""
        return len(self._offers)

    async def room(self) -> bool:
        """Wait until a slot is free and a harness waits that no session is on its way to. False once closed."""
        if self._first_offer is not None:  # what was reserved last comes to be offered now
            with suppress(TimeoutError):
                async with asyncio.timeout(OFFER_S):
                    await self._first_offer.wait()
        while not self._closed and not self._asking:
            self._changed.clear()
            await self._changed.wait()
        self._first_offer = asyncio.Event()
        return await super().room()

    def close(self) -> None:
        """No further group will start."""
        super().close()
        self._changed.set()

    async def offer(self, session: Session, deadline_s: float) -> None:
        """Give a session to a harness: to one that waits, or to the next one that asks within `deadline_s` seconds.

        Raises:
            TimeoutError: nobody took it.
        """
        if self._first_offer is not None:
            self._first_offer.set()
        while self._asking:
            asking = self._asking.popleft()
            if not asking.done():
                asking.set_result(session)
                return
        taken = asyncio.get_running_loop().create_future()
        self._offers.append((session, taken))
        try:
            async with asyncio.timeout(deadline_s):
                await taken
        finally:
            with suppress(ValueError):
                self._offers.remove((session, taken))

    async def take(self, wait_s: float) -> Session:
        """The next session for a harness.

        Raises:
            TimeoutError: there was none within `wait_s` seconds.
        """
        while self._offers:
            session, taken = self._offers.popleft()
            if not taken.done():
                taken.set_result(None)
                return session
        asking: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        self._asking.append(asking)
        self._changed.set()
        try:
            with waits.timed(WAIT, lambda: f"{len(self._asking)} harnesses wait"):
                async with asyncio.timeout(wait_s):
                    return await asking
        finally:
            with suppress(ValueError):
                self._asking.remove(asking)
