"""The one thread that touches tensors: work comes from an inbox between two steps, results go to the event loop.

consumes  requests and calls, from service    waits for     work, when idle or paused
                                              unblocked by  submit, call
produces  finished requests, progress,        unblocks      service, one call_soon_threadsafe per tick
          results of calls
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from asyncrl.inference.local_engine.engine import Engine, Progress
from asyncrl.inference.local_engine.request import Request

T = TypeVar("T")

RECHECK_S = 5.0
"""Longest sleep of an idle engine thread. Work wakes it at once; this bounds the harm of a wake-up that was missed."""


class Refused(ValueError):
    """A call that the engine thread declined; the server goes on and answers 400 with the message."""


@dataclass(frozen=True)
class Settled:
    """The result of a call, on its way to the event loop."""

    future: asyncio.Future[object]
    value: object = None
    refusal: Refused | None = None

    def deliver(self) -> None:
        """Resolves the future, unless its waiter has given up. In the event loop."""
        if self.future.done():
            return
        if self.refusal is not None:
            self.future.set_exception(self.refusal)
        else:
            self.future.set_result(self.value)


Delivery = Request | Progress | Settled


class EngineLoop:
    """Owns an `Engine`; everything that changes it runs in this thread, between two ticks, in order of arrival."""

    def __init__(
        self, engine: Engine, *, deliver: Callable[[list[Delivery]], None], die: Callable[[BaseException], None]
    ) -> None:
        """Prepares the thread.

        Args:
            engine: used by no other thread from `start` on.
            deliver: called in the event loop with what a tick produced.
            die: called in the engine thread with what ended it; it should not return to business.
        """
        self.engine, self.paused = engine, False
        self.last_output_s = 0.0
        self._deliver, self._die = deliver, die
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._out: list[Delivery] = []
        self._flush: tuple[float, asyncio.Future[object]] | None = None
        self._thread = threading.Thread(target=self._run, name="local-engine", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts the thread; results go to this loop."""
        self._loop = loop
        self._thread.start()

    def stop(self, deadline_s: float = 10.0) -> None:
        """Ends the thread after its current tick."""
        self._stopping = True
        self._wake.set()
        self._thread.join(deadline_s)

    # ---- from the event loop -------------------------------------------------------------------------------------
    def submit(self, requests: Sequence[Request]) -> None:
        """Queues requests, which are seen by the same tick."""
        self._enter(partial(self._add, requests))

    def abort(self, matches: Callable[[Request], bool]) -> None:
        """Ends matching requests that are in the engine by then; see `Engine.abort`."""
        self._enter(lambda: self._out.extend(self.engine.abort(matches)))

    def retract(self) -> None:
        """Retracts all rows and hands out who was being aborted; only within a `call`."""
        self._out.extend(self.engine.retract())

    async def call(self, function: Callable[[], T]) -> T:
        """Runs a function in the engine thread between two ticks.

        Raises:
            Refused: the function raised it. Anything else that it raises ends the engine.
        """
        future: asyncio.Future[object] = self._loop.create_future()
        self._enter(partial(self._settle, future, function))
        result: T = await future  # type: ignore[assignment]  # what `function` returned, through a future of objects
        return result

    async def flush(self, timeout_s: float) -> bool:
        """Forgets cached prompts as soon as nothing runs; False if not within `timeout_s`, or if one is waiting."""
        future: asyncio.Future[object] = self._loop.create_future()
        self._enter(partial(self._ask_flush, time.monotonic() + timeout_s, future))
        return bool(await future)

    def _enter(self, function: Callable[[], None]) -> None:
        self._inbox.append(function)
        self._wake.set()

    # ---- in the engine thread ------------------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            while not self._stopping:
                while self._inbox:
                    self._inbox.popleft()()
                working = not self.paused and not self.engine.idle
                if working:
                    report = self.engine.tick()
                    self.last_output_s = time.monotonic()
                    self._out += report.finished
                    self._out += report.progress
                flush_in_s = self._try_flush()
                if self._out:
                    batch, self._out = self._out, []
                    self._loop.call_soon_threadsafe(self._deliver, batch)
                if not working:
                    self._wake.wait(min(RECHECK_S, flush_in_s))
                    self._wake.clear()
        except BaseException as error:  # whatever it was, the server cannot go on without its engine
            self._die(error)

    def _add(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.engine.add(request)

    def _settle(self, future: asyncio.Future[object], function: Callable[[], object]) -> None:
        try:
            self._out.append(Settled(future, function()))
        except Refused as refusal:
            self._out.append(Settled(future, refusal=refusal))

    def _ask_flush(self, deadline_s: float, future: asyncio.Future[object]) -> None:
        if self._flush is not None:
            self._out.append(Settled(future, False))
        else:
            self._flush = (deadline_s, future)

    def _try_flush(self) -> float:
        """Flushes if one is wanted and possible; returns the seconds until the wanted one is given up."""
        if self._flush is None:
            return RECHECK_S
        deadline_s, future = self._flush
        # Requests may wait while paused: retracted ones hold no keys and values.
        flushed = (self.paused or not self.engine.waiting) and self.engine.flush()
        left_s = deadline_s - time.monotonic()
        if flushed or left_s <= 0:
            self._flush = None
            self._out.append(Settled(future, flushed))
            return RECHECK_S
        return left_s
