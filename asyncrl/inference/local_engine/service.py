"""What stands between the routes and the engine: the registry of live requests, pausing, versions, health.

consumes  parsed bodies, from routes            waits for     the gate while paused; then the engine
                                                unblocked by  engine_loop's deliveries, continue
produces  finished requests, to routes          unblocks      engine_loop, by submit
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from asyncrl.inference.local_engine.engine_loop import Delivery, EngineLoop, Settled
from asyncrl.inference.local_engine.gate import Gate
from asyncrl.inference.local_engine.request import Request, RequestRefused
from asyncrl.inference.local_engine.sampling_params import SamplingParams
from asyncrl.inference.local_engine.weight_updates import WeightUpdates

PauseMode = Literal["abort", "retract", "in_place"]
PAUSE_MODES: tuple[PauseMode, ...] = ("abort", "retract", "in_place")


@dataclass(frozen=True)
class ServiceLimits:
    """How much may wait, and how long a health probe does."""

    max_queued_requests: int = 4096
    """Requests beyond those that run, at the gate or in the queue; more are refused with 503."""

    max_queued_tokens: int = 4_194_304
    """Prompt tokens of all live requests (8 bytes each); more are refused with 503."""

    health_timeout_s: float = 20.0
    """Seconds after which a health probe that saw no token answers 503. SGLang's is 20."""


@dataclass(eq=False)
class Ticket:
    """The event loop's side of one live request."""

    request: Request
    done: asyncio.Future[Request]
    received_s: float = field(default_factory=time.time)
    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    changed: asyncio.Event | None = None


class Service:
    """One per server, in its event loop. `engine.paused` is the engine's pause; `gate.paused` the front door's."""

    def __init__(self, updates: WeightUpdates, limits: ServiceLimits, *, model_path: str, version: str) -> None:
        self.updates, self.limits = updates, limits
        self.model_path, self.version = model_path, version
        self.healthy = True
        self.gate = Gate()
        self.engine = EngineLoop(updates.engine, deliver=self._deliver, die=self._die)
        self.on_death: Callable[[BaseException], None] = lambda error: None
        updates.engine.version = version
        self._live: dict[str, Ticket] = {}
        self._num_prompt_tokens = 0
        self._emptied = asyncio.Event()
        self._outputs: set[asyncio.Future[None]] = set()
        self._num_probes = 0
        self._closing = False

    def _die(self, error: BaseException) -> None:
        self.on_death(error)

    # ---- requests ------------------------------------------------------------------------------------------------
    @asynccontextmanager
    async def enter(
        self, requests: Sequence[Request], changed: asyncio.Event | None = None
    ) -> AsyncIterator[list[Ticket]]:
        """Takes the requests of one body to the engine, together; leaving the block before `Ticket.done` aborts one.

        Args:
            requests: checked, not yet submitted.
            changed: set whenever a streamed request has put out more.
        Raises:
            RequestRefused: too much waits (503), memory is released (503), or a rid is live already (400).
        """
        num_tokens = sum([len(request.prompt) for request in requests])
        self._check_room(len(requests), num_tokens)
        self._num_prompt_tokens += num_tokens
        tickets: list[Ticket] = []
        try:
            async with self.gate.requests(len(requests)):
                try:
                    for request in requests:
                        tickets.append(self._register(request, changed))
                    self.engine.submit(requests)
                    yield tickets
                finally:
                    self._forget(tickets)
        finally:
            self._num_prompt_tokens -= num_tokens

    def _check_room(self, num_requests: int, num_tokens: int) -> None:
        waiting = self.gate.num_waiting + len(self.updates.engine.waiting)
        # A body may go beyond it by its own size: one that is larger than the limit would never be answered else.
        if waiting >= self.limits.max_queued_requests:
            raise RequestRefused(
                f"The request queue is full: {waiting} requests wait, --max-queued-requests is "
                f"{self.limits.max_queued_requests}. Try again later or at another server.",
                status=503,
            )
        tokens = self._num_prompt_tokens + num_tokens
        if tokens > self.limits.max_queued_tokens:
            raise RequestRefused(
                f"The request queue is full: live prompts would hold {tokens} tokens, --max-queued-tokens is "
                f"{self.limits.max_queued_tokens}. Try again later or at another server.",
                status=503,
            )

    def _register(self, request: Request, changed: asyncio.Event | None) -> Ticket:
        if self._closing:
            raise RequestRefused("This server is shutting down; ask another one.", status=503)
        if self.updates.released:
            raise RequestRefused(
                f"Memory is released ({', '.join(sorted(self.updates.released))}): call /resume_memory_occupation.",
                status=503,
            )
        if request.rid in self._live:
            raise RequestRefused(f"Duplicate request ID detected: {request.rid}")
        ticket = Ticket(request, asyncio.get_running_loop().create_future(), changed=changed)
        self._live[request.rid] = ticket
        self._emptied.clear()
        return ticket

    def _forget(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            del self._live[ticket.request.rid]
        # Cancelling whoever awaits a future cancels the future with it.
        left = {one.request for one in tickets if not one.done.done() or one.done.cancelled()}
        if left:
            self.engine.abort(left.__contains__)
        if not self._live:
            self._emptied.set()

    def _deliver(self, batch: list[Delivery]) -> None:
        for item in batch:
            if isinstance(item, Settled):
                item.deliver()
                continue
            finished = isinstance(item, Request)
            request = item if isinstance(item, Request) else item.request
            ticket = self._live.get(request.rid)
            if ticket is None or ticket.request is not request or ticket.done.done():
                continue  # its client has gone
            if finished:
                ticket.output, ticket.logprobs = request.output, request.logprobs
                ticket.done.set_result(request)
            elif not isinstance(item, Request):
                ticket.output, ticket.logprobs = item.output, item.logprobs
            if ticket.changed is not None:
                ticket.changed.set()
        for waiter in self._outputs:
            if not waiter.done() and any(not isinstance(item, Settled) for item in batch):
                waiter.set_result(None)

    def abort(self, rid: str, *, everything: bool) -> None:
        """Ends live requests whose rid begins with `rid`, or all; not what waits at the gate, as in SGLang."""
        if everything:
            self.engine.abort(lambda request: True)
        elif rid:
            self.engine.abort(lambda request: request.rid.startswith(rid))

    # ---- pausing -------------------------------------------------------------------------------------------------
    async def pause(self, mode: PauseMode) -> None:
        """Closes the gate; `in_place` stops the engine, `retract` also drops keys and values, `abort` ends all."""
        await self.gate.pause()
        if mode == "abort":
            await self._set_paused(False)
            self.abort("", everything=True)
            await self._drained()
        else:
            await self._set_paused(True, retract=mode == "retract")

    async def _drained(self) -> None:
        if self._live:
            await self._emptied.wait()

    async def resume(self) -> None:
        """Lets the engine and then new requests go on; without a pause it does nothing."""
        await self._set_paused(False)
        await self.gate.resume()

    async def _set_paused(self, paused: bool, *, retract: bool = False) -> None:
        def change() -> None:
            self.engine.paused = paused
            if retract:
                self.engine.retract()

        await self.engine.call(change)

    async def close(self, drain_s: float) -> None:
        """For shutdown: refuses what is new or waits at the gate, lets what runs end within `drain_s`, ends the rest.

        Whoever paused the server may be gone, so paused requests are ended at once with what they have.
        """
        self._closing = True
        if self.engine.paused:
            self.abort("", everything=True)
        await self.resume()
        try:
            async with asyncio.timeout(drain_s):
                await self._drained()
        except TimeoutError:
            self.abort("", everything=True)

    # ---- versions, health ----------------------------------------------------------------------------------------
    async def set_version(self, version: str) -> None:
        """Stamps tokens from now on, and /model_info."""
        await self.engine.call(lambda: self.engine.engine.set_version(version))
        self.version = version

    async def probe(self) -> bool:
        """Whether a token comes out within the health timeout: of live requests, or of one made for the probe.

        While paused none can, so the probe waits in vain and the server is marked unhealthy, as SGLang does.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._outputs.add(waiter)
        self._num_probes += 1
        request = Request(f"HEALTH_CHECK_{self._num_probes}", [0], SamplingParams(max_new_tokens=1, temperature=0.0))
        generation = asyncio.create_task(self._generate(request), name="health probe")
        try:
            async with asyncio.timeout(self.limits.health_timeout_s):
                await waiter
            self.healthy = True
        except TimeoutError:
            self.healthy = False
        finally:
            self._outputs.discard(waiter)
            generation.cancel()
        return self.healthy

    async def _generate(self, request: Request) -> None:
        async with self.enter([request]) as (ticket,):
            await ticket.done
