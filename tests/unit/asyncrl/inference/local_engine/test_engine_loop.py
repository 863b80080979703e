"""The engine's thread: work in between ticks, results out, and what ends it."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from asyncrl.inference.local_engine.engine import Engine
from asyncrl.inference.local_engine.engine_loop import Delivery, EngineLoop, Refused, Settled
from asyncrl.inference.local_engine.request import Request
from tests.support.event_loop import in_event_loop
from tests.support.local_models import make_engine, make_model, make_request


class Running:
    """An engine loop whose deliveries are kept."""

    def __init__(self, engine: Engine) -> None:
        self.finished: dict[str, asyncio.Future[Request]] = {}
        self.died: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()
        self.engine = EngineLoop(
            engine,
            deliver=self._deliver,
            die=lambda error: loop.call_soon_threadsafe(self.died.set_result, error),
        )

    def _deliver(self, batch: list[Delivery]) -> None:
        for item in batch:
            if isinstance(item, Settled):
                item.deliver()
            elif isinstance(item, Request):
                self.finished[item.rid].set_result(item)

    def submit(self, request: Request) -> "asyncio.Future[Request]":
        self.finished[request.rid] = asyncio.get_running_loop().create_future()
        self.engine.submit([request])
        return self.finished[request.rid]


@asynccontextmanager
async def running() -> AsyncIterator[Running]:
    it = Running(make_engine(make_model("qwen2")))
    it.engine.start(asyncio.get_running_loop())
    try:
        yield it
    finally:
        it.engine.stop()


@in_event_loop
async def test_requests_are_answered_and_calls_run_in_the_engines_thread() -> None:
    async with running() as it:
        request = await it.submit(make_request(0, [1, 2], 5))
        assert len(request.output) == 5
        assert await it.engine.call(lambda: threading.current_thread().name) == "local-engine"


@in_event_loop
async def test_a_refusal_reaches_the_caller_and_the_engine_goes_on() -> None:
    def refuse() -> None:
        raise Refused("no session")

    async with running() as it:
        with pytest.raises(Refused, match="no session"):
            await it.engine.call(refuse)
        assert (await it.submit(make_request(0, [1], 2))).finish is not None


@in_event_loop
async def test_anything_else_that_is_raised_ends_the_engine() -> None:
    def fail() -> None:
        raise ZeroDivisionError("in a loader")

    async with running() as it:
        call = asyncio.create_task(it.engine.call(fail))
        assert isinstance(await it.died, ZeroDivisionError)
        call.cancel()


@in_event_loop
async def test_a_paused_engine_takes_calls_but_samples_nothing() -> None:
    async with running() as it:

        def pause(value: bool) -> None:
            it.engine.paused = value

        await it.engine.call(lambda: pause(True))
        waiting = it.submit(make_request(0, [1], 3))
        assert await it.engine.call(lambda: (it.engine.engine.num_sampled, len(it.engine.engine.waiting))) == (0, 1)
        await it.engine.call(lambda: pause(False))
        assert len((await waiting).output) == 3


@in_event_loop
async def test_a_flush_waits_for_running_requests_within_its_timeout_and_only_one_at_a_time() -> None:
    async with running() as it:
        assert await it.engine.flush(0)
        request = it.submit(make_request(0, [1], 400))
        assert not await it.engine.flush(0)
        deferred = asyncio.create_task(it.engine.flush(30))
        await it.engine.call(lambda: None)
        assert not await it.engine.flush(30)
        assert await deferred
        assert request.done()
