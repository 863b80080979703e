"""How many episodes a worker plays at once: slots, taken in order of arrival and refilled one by one.

Slots are episodes, not groups: a straggler holds one slot, and the other slots of its group go to the next prompt.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Slots:
    """`num_slots` places. Belongs to the event loop that it is first waited on in."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots, self._free = num_slots, num_slots
        self._queue: deque[asyncio.Future[None]] = deque()
        self._watchers: list[asyncio.Future[None]] = []
        self._closed = False

    @property
    def num_playing(self) -> int:
        """Slots that are taken."""
        return self.num_slots - self._free

    @property
    def num_queued(self) -> int:
        """Episodes that wait for a slot."""
        return len(self._queue)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold a slot for the block, after everyone who asked earlier."""
        if self._free and not self._queue:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            self._queue.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._give_back()  # the slot was handed over in the moment of the cancellation
                else:
                    self._queue.remove(turn)
                raise
        try:
            yield
        finally:
            self._give_back()

    async def room(self) -> bool:
        """Wait until a slot is free that nobody waits for: time to start another group. False once closed."""
        while not self._closed and not (self._free and not self._queue):
            watcher = asyncio.get_running_loop().create_future()
            self._watchers.append(watcher)
            await watcher
        return not self._closed

    def close(self) -> None:
        """No further group will start: whoever waits for room is told so. Episodes go on."""
        self._closed = True
        self._wake()

    def _give_back(self) -> None:
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
        self._wake()

    def _wake(self) -> None:
        for watcher in self._watchers:
            if not watcher.done():
                watcher.set_result(None)
        self._watchers.clear()
