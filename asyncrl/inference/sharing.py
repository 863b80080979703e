"""Take turns on the same devices: the servers on them sleep while the trainer computes.

The trainer's `Gpus`, by shape: it knows `lend` and `recall` and no server. It asks through the version log; each host
of a lent server sees the wish, gives its server's memory back, and says so there. Answers in flight come back as far as
they are, so the workers go on with them elsewhere, or here when the server is awake again.
"""

import time

from asyncrl import waits
from weightsync.acks import Server
from weightsync.log.base import VersionLog

WAIT = "trainer waits for the devices"
OFF = ("asleep", "drained")
"""States in which a server uses no device."""


class SharedGpus:
    """Devices that servers and trainer ranks use in turns. For rank 0; it blocks nobody's event loop.

    Args:
        log: the run's version log.
        deadline_s: seconds that the servers may take to fall asleep; one that is starting has to start first.
    """

    def __init__(self, log: VersionLog, *, deadline_s: float) -> None:
        self._log, self._deadline_s = log, deadline_s
        self._watch = log.watch(("server",))

    async def lend(self) -> None:
        """Give the devices to the servers, which wake while the caller goes on."""
        await waits.in_thread(self._log.put_wish, "serve")

    async def recall(self) -> None:
        """Take the devices back: returns when every lent server sleeps.

        Raises:
            WaitTimeout: a server did not give its memory back in time; all are to serve again.
        """
        await waits.in_thread(self._log.put_wish, "sleep")
        try:
            await waits.until(WAIT, self._all_asleep, why=self._why, wake=self._watch.wait, deadline_s=self._deadline_s)
        except BaseException:
            await self.lend()
            raise

    def await_serving(self, deadline_s: float) -> bool:
        """Block until a lent server serves at head, or so long; whether one does."""
        # A watch of its own: a call that nobody waits for any more would take this one's news.
        end_s, watch = time.monotonic() + deadline_s, self._log.watch(("server",))
        while not (serves := self._serves()) and (left_s := end_s - time.monotonic()) > 0:
            watch.wait(left_s)
        return serves

    def num_servers(self) -> tuple[int, int]:
        """Servers that are alive, in whatever state: lent ones, and others. Blocks."""
        living = self._log.servers()
        num_lent = sum(server.lent for server in living.values())
        return num_lent, len(living) - num_lent

    def _lent(self) -> dict[str, Server]:
        return {name: server for name, server in self._log.servers().items() if server.lent}

    def _serves(self) -> bool:
        return any(server.state == "serving" for server in self._lent().values())

    def _all_asleep(self) -> bool | None:
        return all(server.state in OFF for server in self._lent().values()) or None

    def _why(self) -> str:
        awake = [f"{name} is {server.state}" for name, server in self._lent().items() if server.state not in OFF]
        return f"{', '.join(awake) or 'nobody'}; a host that died drops out after weightsync.ack_lease_s"
