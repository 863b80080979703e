"""Replies leave at once and in one piece, the head of a request has a limit, and who has left is known."""

import asyncio
import socket

from starlette.types import Receive, Scope, Send

from asyncrl.inference.http_protocol import MAX_HEAD_BYTES, JoinedWrites
from asyncrl.rollout.gateway.exchange import CONNECTION_LOST
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


class Recorded(asyncio.Transport):
    """A transport that notes what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[bytes | str] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.told.append(bytes(data))

    def is_closing(self) -> bool:
        return "close" in self.told

    def close(self) -> None:
        self.told.append("close")


@in_event_loop
async def test_what_is_written_in_one_step_is_sent_as_one_piece_and_before_the_end() -> None:
    recorded = Recorded()
    joined = JoinedWrites(recorded, asyncio.get_running_loop())
    joined.write(b"head ")
    joined.write(b"body")
    assert recorded.told == []
    await asyncio.sleep(0)
    joined.write(b"more")
    joined.close()
    joined.write(b"too late")
    await asyncio.sleep(0)
    assert recorded.told == [b"head body", b"more", "close"]


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


@in_event_loop
async def test_an_application_is_told_that_its_client_has_left_also_after_a_long_body() -> None:
    told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def wait_for_the_end(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body", False):
            pass
        writer.close()
        await scope["state"][CONNECTION_LOST]
        told.set_result(True)

    bound = listen("127.0.0.1", 0, "gateway")
    async with serving(wait_for_the_end, bound):
        _, writer = await asyncio.open_connection(*bound.getsockname())
        size = 3 * MAX_HEAD_BYTES  # reading was paused for the sake of the body
        writer.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size)
        async with asyncio.timeout(10.0):
            assert await told
