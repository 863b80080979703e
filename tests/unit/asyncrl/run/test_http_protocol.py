"""Replies leave at once, and the head of a request has a limit."""

import asyncio
import socket

from starlette.types import Receive, Scope, Send

from asyncrl.run.http_protocol import MAX_HEAD_BYTES
from asyncrl.run.http_server import listen, serving
from tests.support.event_loop import in_event_loop


async def measure(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that answers with the length of the body, in seven digits."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"7")]})
    await send({"type": "http.response.body", "body": b"%07d" % size})


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


@in_event_loop
async def test_a_head_that_does_not_end_is_cut_and_long_bodies_are_not() -> None:
    bound = listen("127.0.0.1", 0, "gateway")
    async with serving(measure, bound):
        reader, writer = await asyncio.open_connection(*bound.getsockname())
        for size in (0, 3 * MAX_HEAD_BYTES, 5):  # one connection, one request after the other
            writer.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size)
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
            assert int(await reader.readexactly(7)) == size
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"y" * (MAX_HEAD_BYTES // 2))
        writer.write(b"y" * (MAX_HEAD_BYTES // 2))  # the limit lies in the last few bytes: none is left unread
        assert b"400 Bad Request" in await reader.readuntil(b"\r\n\r\n")
        assert f"more than {MAX_HEAD_BYTES} bytes".encode() in await reader.read()
        writer.close()
