"""The host of one server: gives it one life after another, keeps its weights at head, and speaks for it.

consumes  weight versions, through life             waits for     head, an anchor, the wish; the server's end
produces  acknowledgements and signs of life        unblocks      inference.fleet, which routes by them

A server that dies, hangs or does not take weights gets a new life, with a new incarnation that voids what the last one
said, up to a bound. An operator may have it leave, or be replaced, when its requests are answered. The host itself ends
only when it is stopped, another host takes over, or that bound is reached.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from asyncrl import waits
from asyncrl.errors import ServerError
from asyncrl.inference.absence import LISTEN_S, Absence
from asyncrl.inference.activation import Pausing
from asyncrl.inference.adoption import NotAdoptable
from asyncrl.inference.client import ServerClient
from asyncrl.inference.draining import Ordered, answered
from asyncrl.inference.errors import ServerUnavailable
from asyncrl.inference.life import HostFacts, ServerLife
from asyncrl.inference.presence import Presence
from asyncrl.inference.probe import Probe
from asyncrl.inference.server import ManagedServer
from asyncrl.inference.stage_dir import StageDir
from weightsync.acks import Vitals
from weightsync.receiver import Receiver

BACK_OFF_S = (0.5, 30.0)  # before the second life, and at most
ANSWER_S = 5.0  # an abort is answered between two decoding steps

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HostSettings:
    """Bounds of a host.

    Attributes:
        max_restarts: lives after the first, in all, of those that are not forgiven.
        renew_every_s: seconds between two signs of life, a third of the lease or less.
        probe_deadline_s: seconds the server may take to answer a probe.
        max_probe_failures: probes in a row that may fail before the server counts as hanging.
        forgiven_s: seconds that a life must have served for earlier ends to count no more.
    """

    max_restarts: int
    renew_every_s: float
    forgiven_s: float = 600.0
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
        self._make_client, self._pausing = make_client, pausing
        self._settings, self._report = settings, report
        self._presence = Presence(server.name, make_receiver, renew_every_s=settings.renew_every_s)
        self._absence = Absence(self._presence, stage, renew_every_s=settings.renew_every_s)
        self._probe = Probe(server.name, settings.probe_deadline_s, settings.max_probe_failures)
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
                self.facts.begin_life()
                try:
                    await self._live(stop)
                except Ordered as ordered:
                    if ordered.order.kind == "leave":
                        await self._stand_by(stop)
                except ServerUnavailable as error:
                    self._bound(error, num_restarts)
                    num_restarts = 1 if self._is_forgiven() else num_restarts + 1
                    await self._back_off(stop, num_restarts, str(error))
        finally:
            await self._presence.leave()
            await waits.in_thread(self._stage.close)

    def _is_forgiven(self) -> bool:
        return self.facts.served_s(time.monotonic()) >= self._settings.forgiven_s

    def _bound(self, error: ServerUnavailable, num_restarts: int) -> None:
        """Raise what another life would only repeat."""
        if isinstance(error, NotAdoptable) and not self.facts.counts.get("served_lives"):
            raise ServerError(f"{self._server.name}: {error}") from error
        if num_restarts >= self._settings.max_restarts and not self._is_forgiven():
            raise ServerError(
                f"{self._server.name} ended or failed {num_restarts + 1} times, and may be started again "
                f"inference.max_restarts = {self._settings.max_restarts} times. The last time: {error}"
            ) from error

    async def _back_off(self, stop: asyncio.Event, num_restarts: int, error: str) -> None:
        log.warning("%s gets another life: %s", self._server.name, error)
        self.facts.add("restarts")
        self.facts.trouble = error
        first_s, most_s = BACK_OFF_S
        pause_s = min(most_s, first_s * 2.0 ** (num_restarts - 1))
        reason = f"life {num_restarts + 1} of {self._settings.max_restarts + 1} begins in {pause_s:g} s: {error}"
        with waits.timed("host waits before it starts its server again"):
            await self._absence.last(stop, "starting", reason, self._vitals(), deadline_s=pause_s)

    async def _stand_by(self, stop: asyncio.Event) -> None:
        """Until the operator wants the server back."""

        def wanted_back(receiver: Receiver) -> bool:
            order = receiver.order()
            return order is None or order.kind != "leave"

        log.info("%s left, as an operator asked; `asyncrl fleet restore` has it back", self._server.name)
        self.facts.state = "drained"
        await waits.in_thread(self._report, self._server.name, self.facts.to_report())
        reason = "an operator had it leave; `asyncrl fleet restore` has it back"
        await self._absence.last(stop, "drained", reason, self._vitals(), over=wanted_back)

    def _vitals(self) -> Vitals:
        return Vitals(num_restarts=int(self.facts.counts.get("restarts", 0)))

    async def _live(self, stop: asyncio.Event) -> None:
        """One life, until it ends or `stop` is set."""
        incarnation, url = uuid.uuid4().hex, self._server.url()
        stage_dir = self._stage.for_life(incarnation)
        client = self._make_client(url)
        receiver = await self._presence.begin(incarnation, url, stage_dir)
        started, ordered = asyncio.Event(), False
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
        except Ordered:
            ordered = True
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if stop.is_set():
                await self._presence.leave()  # first: nobody is sent to it from here on
            # A dead server's word must not outlive it, and its device is not free before its process is gone.
            async with self._presence.ending("its process is ended; it may get another life"):
                await self._end_life(client, incarnation, answers=started.is_set() and (stop.is_set() or ordered))

    async def _end_life(self, client: ServerClient, incarnation: str, *, answers: bool) -> None:
        """`answers`: what is in flight is answered as far as it is; a server on a lent device may be busy when its
        trainer stops, and its workers go on elsewhere."""
        if answers:
            try:
                async with asyncio.timeout(ANSWER_S):
                    await client.abort_all()
                    await answered(client)
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
        self._probe.begin()
        while True:
            vitals = self._vitals()
            if started.is_set():
                found = await self._probe.look(client, lambda: self.facts.stamped, vitals)
            else:
                found = vitals
                await self._heed_order(receiver)
            if found is not None:
                await waits.in_thread(receiver.renew, found)
            await waits.in_thread(self._report, self._server.name, self.facts.to_report())
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.renew_every_s):
                    await self._never.wait()

    async def _heed_order(self, receiver: Receiver) -> None:
        """Before the server answers, which may take minutes. A life that begins is what a replacement asks for."""
        order = await waits.in_thread(receiver.order)
        if order is not None and order.kind == "replace":
            await waits.in_thread(receiver.obeyed, order)
        elif order is not None:
            raise Ordered(order)

    async def _watch(self, started: asyncio.Event) -> None:
        await started.wait()
        code = await self._server.ended()
        raise ServerUnavailable(f"its process ended with exit code {code}")
