"""The host of one server: gives it one life after another, keeps its weights at head, and speaks for it.

consumes  weight versions, through life             waits for     head, an anchor, the wish; the server's end
produces  acknowledgements and signs of life        unblocks      inference.fleet, which routes by them

A server that dies, hangs or does not take weights gets a new life, with a new incarnation that voids what the last one
said, up to a bound. The host itself ends only when it is stopped, replaced, or that bound is reached.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from asyncrl import waits
from asyncrl.errors import ServerError
from asyncrl.inference.activation import Pausing
from asyncrl.inference.client import ServerClient
from asyncrl.inference.errors import ServerUnavailable
from asyncrl.inference.life import HostFacts, ServerLife
from asyncrl.inference.server import ManagedServer
from asyncrl.inference.stage_dir import StageDir
from weightsync.errors import WeightsyncError
from weightsync.receiver import Receiver

LISTEN_S = 2.0  # longest stay of the listening thread, which a process waits for when it ends
BACK_OFF_S = (0.5, 30.0)  # before the second life, and at most
ANSWER_S = 5.0  # an abort is answered between two decoding steps

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HostSettings:
    """Bounds of a host.

    Attributes:
        max_restarts: lives after the first, in all.
        renew_every_s: seconds between two signs of life, a third of the lease or less.
        probe_deadline_s: seconds the server may take to answer a probe.
        max_probe_failures: probes in a row that may fail before the server counts as hanging.
    """

    max_restarts: int
    renew_every_s: float
    probe_deadline_s: float = 10.0
    max_probe_failures: int = 3


class Host:
    """Looks after one server.

    Args:
        server: starts it, or waits for one that somebody else runs.
        stage: where its weights are left for it.
        make_client: from an address.
        make_receiver: from an incarnation, an address and the stage directory of that life; registers the life.
        pausing: how it is paused for weights.
        settings: bounds.
        report: takes the server's name and facts about it for people, often; blocks.
    """

    def __init__(
        self,
        server: ManagedServer,
        *,
        stage: StageDir,
        make_client: Callable[[str], ServerClient],
        make_receiver: Callable[[str, str, Path], Receiver],
        pausing: Pausing,
        settings: HostSettings,
        report: Callable[[str, Mapping[str, float | str]], None],
    ) -> None:
        self._server, self._stage = server, stage
        self._make_client, self._make_receiver = make_client, make_receiver
        self._pausing, self._settings, self._report = pausing, settings, report
        self.facts = HostFacts()
        self._never = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Look after the server until `stop` is set, then end it.

        Raises:
            ServerError: its lives are used up.
            StaleIncarnation: another host looks after a server of this name.
            LogLost: the version log does not answer.
        """
        await waits.in_thread(self._stage.open)
        num_restarts = 0
        try:
            while not stop.is_set():
                try:
                    await self._live(stop)
                except ServerUnavailable as error:
                    if num_restarts >= self._settings.max_restarts:
                        raise ServerError(
                            f"{self._server.name} ended or failed {num_restarts + 1} times, and may be started again "
                            f"inference.max_restarts = {self._settings.max_restarts} times. The last time: {error}"
                        ) from error
                    log.warning("%s gets another life: %s", self._server.name, error)
                    self.facts.add("restarts")
                    self.facts.trouble = str(error)
                    await self._back_off(stop, num_restarts)
                    num_restarts += 1
        finally:
            await waits.in_thread(self._stage.close)

    async def _back_off(self, stop: asyncio.Event, num_restarts: int) -> None:
        first_s, most_s = BACK_OFF_S
        with waits.timed("host waits before it starts its server again"), suppress(TimeoutError):
            async with asyncio.timeout(min(most_s, first_s * 2.0**num_restarts)):
                await stop.wait()

    async def _live(self, stop: asyncio.Event) -> None:
        """One life, until it ends or `stop` is set."""
        incarnation, url = uuid.uuid4().hex, self._server.url()
        stage_dir = self._stage.for_life(incarnation)
        client = self._make_client(url)
        receiver = await waits.in_thread(self._make_receiver, incarnation, url, stage_dir)
        started = asyncio.Event()
        tasks = [
            asyncio.create_task(self._serve(client, receiver, url, stage_dir, started)),
            asyncio.create_task(self._show_life(client, receiver, started)),
            asyncio.create_task(self._watch(started)),
            asyncio.create_task(stop.wait()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._end_life(receiver, client, incarnation, answers=started.is_set() and stop.is_set())

    async def _end_life(self, receiver: Receiver, client: ServerClient, incarnation: str, *, answers: bool) -> None:
        """`answers`: what is in flight is answered as far as it is; a server on a lent device may be busy when its
        trainer stops, and its workers go on elsewhere."""
        try:
            # First: from here on nobody is sent to it. A dead server's word must not outlive it by a lease either.
            await waits.in_thread(receiver.leave)
        except WeightsyncError as error:
            log.warning("%s could not take back its word, which lapses by itself: %s", self._server.name, error)
        if answers:
            try:
                async with asyncio.timeout(ANSWER_S):
                    await client.abort_all()
            except (ServerError, TimeoutError) as error:
                log.warning("%s did not answer what it has in flight: %s", self._server.name, error)
        await client.close()
        await self._server.end()
        await waits.in_thread(self._stage.end_life, incarnation)

    async def _serve(
        self, client: ServerClient, receiver: Receiver, url: str, stage_dir: Path, started: asyncio.Event
    ) -> None:
        await self._server.begin(url, stage_dir, client)
        started.set()
        self.facts.add("lives")
        life = ServerLife(
            self._server.name, client, receiver, stage_dir=stage_dir, pausing=self._pausing, facts=self.facts
        )
        while True:
            await life.round()
            await waits.in_thread(receiver.wait, LISTEN_S)

    async def _show_life(self, client: ServerClient, receiver: Receiver, started: asyncio.Event) -> None:
        """Renew the lease while the server answers probes; one that hangs loses it, and then its life."""
        num_failures = 0
        while True:
            try:
                if started.is_set():
                    await client.model_info(self._settings.probe_deadline_s)  # /health would hang while it is paused
            except ServerUnavailable as error:
                num_failures += 1
                if num_failures >= self._settings.max_probe_failures:
                    raise ServerUnavailable(f"{num_failures} probes in a row failed: {error}") from error
            else:
                num_failures = 0
                await waits.in_thread(receiver.renew)
            await waits.in_thread(self._report, self._server.name, self.facts.to_report())
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.renew_every_s):
                    await self._never.wait()

    async def _watch(self, started: asyncio.Event) -> None:
        await started.wait()
        code = await self._server.ended()
        raise ServerUnavailable(f"its process ended with exit code {code}")
