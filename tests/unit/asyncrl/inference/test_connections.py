"""Replies as bytes on the wire, well-formed and not."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from asyncrl.errors import ConfigError
from asyncrl.inference.connections import Connections, Reply
from asyncrl.inference.errors import ServerUnavailable
from tests.support.event_loop import in_event_loop


@asynccontextmanager
async def answering(*replies: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that sends one of `replies` to each request, in order, and closes after the last."""
    heads: list[bytes] = []
    left = list(replies)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while left:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(left.pop(0))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads


@in_event_loop
async def test_a_counted_and_a_chunked_body_are_read_to_their_end() -> None:
    counted = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    chunked = (
        b"HTTP/1.1 418 I am a teapot\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nT: 1\r\n\r\n"
    )
    async with answering(counted, chunked, counted) as (url, heads):
        connections = Connections(url, {"Authorization": "Bearer k"})
        assert await connections.request("GET", "/a", deadline_s=5.0) == Reply(200, b"hello")
        assert await connections.request("POST", "/b", deadline_s=5.0) == Reply(418, b"abcde")
        assert await connections.request("GET", "/c", deadline_s=5.0) == Reply(200, b"hello")
        await connections.close()
    assert heads[0].startswith(b"GET /a HTTP/1.1\r\nContent-Length: 0\r\nHost: 127.0.0.1:")
    assert b"Authorization: Bearer k\r\n" in heads[1]


@pytest.mark.parametrize(
    "reply",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nno end is known",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 200",
        b"",
    ],
)
@in_event_loop
async def test_a_reply_that_is_cut_or_no_http_is_unavailable(reply: bytes) -> None:
    async with answering(reply) as (url, _):
        with pytest.raises(ServerUnavailable):
            await Connections(url).request("GET", "/a", deadline_s=5.0)


@in_event_loop
async def test_a_connection_that_the_server_closes_after_its_reply_is_not_used_again() -> None:
    closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    async with answering(closing) as (url, _):
        connections = Connections(url)
        await connections.request("GET", "/a", deadline_s=5.0)
        with pytest.raises(ServerUnavailable, match="dropped"):
            await connections.request("GET", "/b", deadline_s=5.0)


@in_event_loop
async def test_a_server_that_sends_head_and_body_apart_is_not_slowed_down_by_delayed_acknowledgements() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
            writer.write(b"ok")

    # A socket made like this one leaves Nagle's algorithm on for the connections it accepts.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    server = await asyncio.start_server(serve, sock=listener)
    connections = Connections(f"http://127.0.0.1:{listener.getsockname()[1]}")
    started = time.monotonic()
    for _ in range(50):
        await connections.request("GET", "/a", deadline_s=5.0)
    assert time.monotonic() - started < 1.0, "50 delayed acknowledgements take 2 seconds"
    await connections.close()
    server.close()


@pytest.mark.parametrize("address", ["", "127.0.0.1:30000", "ftp://host", "http://"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="expected http"):
        Connections(address)
