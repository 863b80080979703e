"""Take turns on the same devices: the servers sleep while the trainer computes.

The trainer's `Gpus`, by shape: it knows `for_training()` and no server. It asks through the version log; each host sees
the wish, gives its server's memory back, and says so there.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from asyncrl import waits
from weightsync.log.base import VersionLog

WAIT = "trainer waits for the devices"


class SharedGpus:
    """Devices that servers and trainer ranks use in turns. For rank 0; it blocks nobody's event loop.

    Args:
        log: the run's version log.
        deadline_s: seconds that the servers may take to fall asleep; one that is starting has to start first.
    """

    def __init__(self, log: VersionLog, *, deadline_s: float) -> None:
        self._log, self._deadline_s = log, deadline_s
        self._watch = log.watch(("server",))

    async def wake(self) -> None:
        """Give the devices to the servers. Call it once at the start: a trainer that died may have left them asleep,
        and then nobody would ever make the groups that the next one waits for."""
        await waits.in_thread(self._log.put_wish, "serve")

    @asynccontextmanager
    async def for_training(self) -> AsyncIterator[None]:
        """Hold the devices for the block; the servers serve again after it, whatever happened in it.

        Raises:
            WaitTimeout: a server did not give its memory back in time.
        """
        await waits.in_thread(self._log.put_wish, "sleep")
        try:
            await waits.until(WAIT, self._all_asleep, why=self._why, wake=self._watch.wait, deadline_s=self._deadline_s)
            yield
        finally:
            await self.wake()

    def _awake(self) -> dict[str, str]:
        return {name: server.state for name, server in self._log.servers().items() if server.state != "asleep"}

    def _all_asleep(self) -> bool | None:
        return None if self._awake() else True

    def _why(self) -> str:
        awake = ", ".join(f"{name} is {state}" for name, state in self._awake().items())
        return f"{awake or 'nobody'}; a host that died drops out after weightsync.ack_lease_s"
