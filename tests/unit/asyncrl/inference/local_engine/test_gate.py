"""Who passes the gate when."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial

from asyncrl.inference.local_engine.gate import Gate
from tests.support.event_loop import in_event_loop


async def settle() -> None:
    """Lets every task that can go on go on."""
    for _ in range(20):
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)


class Visitor:
    """Goes through the gate as a request or an update, and stays until told to leave."""

    def __init__(self, gate: Gate, kind: str) -> None:
        self.inside, self._leave = False, asyncio.Event()
        self.task = asyncio.create_task(self._visit(partial(gate.requests, 1) if kind == "request" else gate.update))

    async def _visit(self, enter: object) -> None:
        async with enter():  # type: ignore[operator]  # one of Gate's two ways in
            self.inside = True
            await self._leave.wait()
        self.inside = False

    async def leave(self) -> None:
        self._leave.set()
        await self.task


@in_event_loop
async def test_requests_wait_while_paused_and_enter_when_resumed() -> None:
    gate = Gate()
    await gate.pause()
    visitor = Visitor(gate, "request")
    await settle()
    assert (visitor.inside, gate.num_waiting) == (False, 1)
    await gate.resume()
    await settle()
    assert (visitor.inside, gate.num_waiting) == (True, 0)
    await visitor.leave()


@in_event_loop
async def test_the_requests_of_one_body_count_one_by_one_and_enter_together() -> None:
    gate = Gate()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(gate.requests(3))
        await stack.enter_async_context(gate.requests(2))
        update = Visitor(gate, "update")
        await settle()
        late = asyncio.create_task(stack.enter_async_context(gate.requests(4)))
        await settle()
        assert (update.inside, gate.num_waiting) == (False, 4)
        await gate.pause()
        await settle()
        assert update.inside
        await update.leave()
        await gate.resume()
        await late
        assert gate.num_waiting == 0
    last = Visitor(gate, "update")
    await settle()
    assert last.inside
    await last.leave()


@in_event_loop
async def test_a_request_that_gives_up_at_the_gate_leaves_no_trace() -> None:
    gate = Gate()
    await gate.pause()
    visitor = Visitor(gate, "request")
    await settle()
    visitor.task.cancel()
    await settle()
    assert gate.num_waiting == 0


@in_event_loop
async def test_an_update_without_a_pause_waits_for_requests_and_holds_new_ones_back() -> None:
    gate = Gate()
    running = Visitor(gate, "request")
    await settle()
    update = Visitor(gate, "update")
    await settle()
    late = Visitor(gate, "request")
    await settle()
    assert (running.inside, update.inside, late.inside) == (True, False, False)
    await running.leave()
    await settle()
    assert (update.inside, late.inside) == (True, False)
    await update.leave()
    await settle()
    assert late.inside
    await late.leave()


@in_event_loop
async def test_an_update_during_a_pause_does_not_wait_for_requests() -> None:
    gate = Gate()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(gate.requests(1))
        await gate.pause()
        update = Visitor(gate, "update")
        await settle()
        assert update.inside
        await update.leave()


@in_event_loop
async def test_a_pause_lets_an_update_in_that_was_waiting_for_requests() -> None:
    gate = Gate()
    running, update = Visitor(gate, "request"), Visitor(gate, "update")
    await settle()
    assert not update.inside
    await gate.pause()
    await settle()
    assert update.inside
    await update.leave()
    await running.leave()


@in_event_loop
async def test_two_updates_go_one_after_the_other() -> None:
    gate = Gate()
    await gate.pause()
    first, second = Visitor(gate, "update"), Visitor(gate, "update")
    await settle()
    assert (first.inside, second.inside) == (True, False)
    await first.leave()
    await settle()
    assert second.inside
    await second.leave()
