"""One server as a fleet sees it: what it acknowledged, what is in flight there, and whether it has just failed.

A server that falls asleep answers what it has in flight before. A request that crossed its good night waits at its door
until it wakes, which may be long: such a request is taken back and asked elsewhere.

A server that failed a request is left alone until it answers a probe, and a little longer each time: the episodes wait
meanwhile instead of spending their attempts on it. One that died takes a while to drop out of the version log, and
without this every prompt in flight would be counted as failed for an outage.

A server whose host is gone, or gave it up, may still answer what it has in flight, or hang and never answer: it is
asked whether it is there for as long as something of ours is.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from asyncrl import waits
from asyncrl.errors import ServerError
from asyncrl.inference.client import ServerClient
from asyncrl.inference.errors import FellAsleep, MalformedAnswer, RequestRefused, ServerUnavailable
from weightsync.acks import Ack

ALONE_S = (0.25, 10.0)  # the first time, and at most
PROBE_S = 5.0
LEFTOVERS_S = 2.0  # between two looks at a server that left with requests of ours
CLOCK_S = 0.25  # signs of life are farther apart than this, and the ages of one differ by less
DOOR_S = 1.0  # an answer that was given before the server slept is here by then

log = logging.getLogger(__name__)


class Member:
    """A server of a fleet. `recovered` is called when it may be asked again."""

    def __init__(self, name: str, ack: Ack, client: ServerClient, recovered: Callable[[], None]) -> None:
        self.name, self.ack, self.client = name, ack, client
        self.num_in_flight = 0
        self._in_flight_s = 0.0
        self._counted_s = time.monotonic()
        self._recovered = recovered
        self._num_failures = 0
        self._recovery: asyncio.Task[None] | None = None
        self._trouble = ""
        self._asking: set[asyncio.Timeout] = set()
        self._taken_back: ServerUnavailable | None = None
        self._leftovers: asyncio.Task[None] | None = None
        self._num_of_others, self._measured_s = 0, float("-inf")
        self._history: deque[tuple[float, int]] = deque(maxlen=8)
        self._measure(ack)

    @property
    def load(self) -> int:
        """Requests that the server has, as far as is known: this fleet's, and what others had there a moment ago."""
        return self.num_in_flight + self._num_of_others

    @property
    def trouble(self) -> str:
        """Why it is left alone now, empty when it is not."""
        alone = self._recovery is not None and not self._recovery.done()
        return self._trouble if alone else ""

    def in_flight_s(self, change: int = 0) -> float:
        """Seconds of all requests in flight together, up to now; the mean number at once is a difference of two of
        these over the seconds between. From now on there are `change` more."""
        now_s = time.monotonic()
        self._in_flight_s += self.num_in_flight * (now_s - self._counted_s)
        self._counted_s = now_s
        self.num_in_flight += change
        return self._in_flight_s

    def acknowledged(self, ack: Ack) -> None:
        """Take what it says now; a new life of the server is not blamed for the last one's death."""
        if ack.incarnation != self.ack.incarnation:
            self._num_failures = 0
            if self._recovery is not None:
                self._recovery.cancel()
                self._recovery = None
        self._measure(ack)
        if ack.state == "asleep" != self.ack.state:
            asyncio.get_running_loop().call_later(DOOR_S, self._leave_door)
        self.ack = ack

    def _measure(self, ack: Ack) -> None:
        """Tell others' requests from ours in what the host counted, which is as old as its last sign of life."""
        now_s = time.monotonic()
        self._history.append((now_s, self.num_in_flight))
        counted_s = now_s - ack.age_s
        if ack.num_requests is None or counted_s <= self._measured_s + CLOCK_S:
            return  # nothing, or nothing new: ours have changed since
        self._measured_s = counted_s
        _, ours = min(self._history, key=lambda sample: abs(sample[0] - counted_s))
        self._num_of_others = max(0, ack.num_requests - ours)

    @asynccontextmanager
    async def awake(self) -> AsyncIterator[None]:
        """Wait for an answer in the block for as long as the server does not sleep.

        Raises:
            FellAsleep: it sleeps, and has not answered.
            ServerUnavailable: it left the fleet, and does not answer any more.
        """
        asking = asyncio.timeout(None)
        try:
            async with asking:
                self._asking.add(asking)
                yield
        except TimeoutError as error:
            if not asking.expired():
                raise
            if self._taken_back is not None:
                raise ServerUnavailable(str(self._taken_back)) from error
            raise FellAsleep(f"{self.name} fell asleep before it took the request") from error
        finally:
            self._asking.discard(asking)

    def _leave_door(self) -> None:
        """Take back what still waits, if it sleeps."""
        if self.ack.state == "asleep":
            self._take_back()

    def _take_back(self) -> None:
        while self._asking:
            self._asking.pop().reschedule(asyncio.get_running_loop().time())

    def answered(self) -> None:
        """It answered a request."""
        self._num_failures = 0

    def failed(self, error: ServerError) -> None:
        """It failed a request. One death fails everything in flight: that is one failure."""
        if not self.trouble:
            self._num_failures += 1
            self._trouble = f"it failed {self._num_failures} times in a row, the last: {error}"
            self._recovery = asyncio.create_task(self._recover())

    async def left(self) -> None:
        """The board names it no more. What is in flight may still be answered."""
        await self.close()
        if self._asking:
            self._leftovers = asyncio.create_task(self._watch_leftovers())

    async def _watch_leftovers(self) -> None:
        """Take back what is in flight when the server does not answer; its host may be gone, and nobody else knows."""
        while self._asking:
            try:
                await self.client.loads(PROBE_S)
            except (RequestRefused, MalformedAnswer):
                pass  # it is there, and does not say
            except ServerError as error:
                self._taken_back = ServerUnavailable(
                    f"{self.name} left the fleet with requests in flight, and does not answer any more: {error}"
                )
                log.warning("%s. They are asked elsewhere.", self._taken_back)
                self._take_back()
                return
            await waits.pause("fleet looks after requests at a server that left", LEFTOVERS_S)

    async def close(self) -> None:
        """Forget it; requests in flight end by themselves."""
        if self._leftovers is not None:
            self._leftovers.cancel()
        if self._recovery is not None:
            self._recovery.cancel()
        await self.client.close()

    async def _recover(self) -> None:
        first_s, most_s = ALONE_S
        for pause_s in waits.doubling(min(most_s, first_s * 2.0 ** (self._num_failures - 1)), most_s):
            await waits.pause("fleet leaves a failed server alone", pause_s)
            try:
                await self.client.model_info(PROBE_S)
            except ServerError as error:
                self._trouble = f"it does not answer: {error}"
            else:
                break
        self._trouble = ""
        self._recovery = None
        self._recovered()
