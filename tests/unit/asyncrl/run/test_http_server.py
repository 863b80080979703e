"""A listening socket whose replies leave at once, and the errors of one that cannot be had."""

import asyncio
import socket

import pytest

from asyncrl.errors import PreflightError
from asyncrl.run.http_server import listen
from tests.support.event_loop import in_event_loop


@in_event_loop
async def test_a_reply_in_two_parts_does_not_wait_for_an_acknowledgement() -> None:
    sends_at_once: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted = writer.get_extra_info("socket")
        sends_at_once.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    bound = listen("127.0.0.1", 0, "gateway")
    async with await asyncio.start_server(answer, sock=bound):
        _, writer = await asyncio.open_connection(*bound.getsockname())
        assert await sends_at_once != 0
        writer.close()


def test_a_port_that_is_taken_is_named_with_its_keys() -> None:
    with listen("127.0.0.1", 0, "gateway") as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PreflightError, match=rf"gateway\.port = {port}"):
            listen("127.0.0.1", port, "gateway")
