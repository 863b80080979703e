"""Who may enter the engine: closed while paused, and shared by requests but not with a weight update."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """Requests wait here while the server is paused or an update has the engine to itself.

    As in SGLang: an update without a pause waits until running requests are done and holds new ones back meanwhile;
    an update during a pause goes ahead at once. For one event loop.
    """

    def __init__(self) -> None:
        self.paused = False
        self.num_waiting = 0
        self._inside = 0
        self._updates = 0
        self._updating = False
        self._changed = asyncio.Condition()

    def _open(self) -> bool:
        return not self.paused and not self._updates

    @asynccontextmanager
    async def requests(self, count: int) -> AsyncIterator[None]:
        """Enters as so many requests, together: waits while closed. The wait has no deadline of its own: the client's
        ends it."""
        if not self._open():
            self.num_waiting += count
            try:
                async with self._changed:
                    await self._changed.wait_for(self._open)
            finally:
                self.num_waiting -= count
        self._inside += count
        try:
            yield
        finally:
            self._inside -= count
            if self._updates:
                await self._notify()

    @asynccontextmanager
    async def update(self) -> AsyncIterator[None]:
        """Enters as a weight update: alone, unless the server is paused. A pause that comes meanwhile lets it in."""
        self._updates += 1
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._updating and (self.paused or not self._inside))
                self._updating = True
            try:
                yield
            finally:
                self._updating = False
        finally:
            self._updates -= 1
            await self._notify()

    async def pause(self) -> None:
        """Closes the gate for requests."""
        self.paused = True
        await self._notify()

    async def resume(self) -> None:
        """Opens the gate."""
        self.paused = False
        await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
