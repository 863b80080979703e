"""A server's word on the roster, over all its lives and the times between them.

Each start of a server voids what the one before said. Only the end of its host takes the word back: between two lives
somebody who waits for the server, as a trainer that wants its device, must not take it for gone.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from asyncrl import waits
from weightsync.errors import WeightsyncError
from weightsync.receiver import Receiver

log = logging.getLogger(__name__)


class Presence:
    """Of one server.

    Args:
        name: of the server, for messages.
        make_receiver: from an incarnation, an address and a stage directory; registers the incarnation.
        renew_every_s: seconds between two signs of life.
    """

    def __init__(self, name: str, make_receiver: Callable[[str, str, Path], Receiver], *, renew_every_s: float) -> None:
        self._name, self._make_receiver, self._renew_every_s = name, make_receiver, renew_every_s
        self._receiver: Receiver | None = None

    async def begin(self, incarnation: str, url: str, stage_dir: Path) -> Receiver:
        """A start of the server, which is on the roster from now on; `url` is empty while it has no life.

        Raises:
            LogLost: the version log does not answer.
        """
        self._receiver = await waits.in_thread(self._make_receiver, incarnation, url, stage_dir)
        return self._receiver

    @asynccontextmanager
    async def ending(self, reason: str) -> AsyncIterator[None]:
        """While a life ends: nobody is sent to the server, and it is not gone either, unless it has left."""
        if (receiver := self._receiver) is None:
            yield
            return
        await self._say(lambda: receiver.withdraw("starting", reason))
        renewing = asyncio.create_task(self._renew(receiver))
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            await self.close()

    async def close(self) -> None:
        """This start brings no weights any more; its word stays until the next one voids it."""
        if self._receiver is not None:
            await waits.in_thread(self._receiver.close)

    async def leave(self) -> None:
        """The server is gone in order; nothing more is said. Repeating is harmless."""
        if self._receiver is not None:
            receiver, self._receiver = self._receiver, None
            await self._say(receiver.leave)

    async def _renew(self, receiver: Receiver) -> None:
        while True:
            await waits.pause("host waits for its server's end", self._renew_every_s)
            await self._say(receiver.renew)

    async def _say(self, word: Callable[[], None]) -> None:
        try:
            await waits.in_thread(word)
        except WeightsyncError as error:
            log.warning("the version log did not hear %s, whose last word lapses by itself: %s", self._name, error)
