"""What all requests of a server hold together is bounded, and given back however a request ends."""

import asyncio
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest

from asyncrl.inference.errors import BUSY
from asyncrl.inference.local_engine.asgi import App, Bodies, Exchange, Keys, Reply, Route

Message = MutableMapping[str, Any]


class Call:
    """One request in parts, and what came back; a part that is an event is waited for first."""

    def __init__(self, *parts: bytes | asyncio.Event, leaves: bool = False) -> None:
        self._parts, self._leaves = iter(parts), leaves
        self.status = 0

    async def __call__(self, app: App) -> int:
        scope = {"type": "http", "method": "POST", "path": "/echo", "query_string": b"", "headers": []}
        await app(scope, self._receive, self._send)
        return self.status

    async def _receive(self) -> Message:
        for part in self._parts:
            if isinstance(part, asyncio.Event):
                await part.wait()
            else:
                return {"type": "http.request", "body": part, "more_body": True}
        return (
            {"type": "http.disconnect"} if self._leaves else {"type": "http.request", "body": b"", "more_body": False}
        )

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            assert isinstance(message["status"], int)
            self.status = message["status"]


@pytest.fixture
def bodies() -> Iterator[Bodies]:
    held = Bodies(limit=100)
    yield held
    assert held.held == 0


async def _echo(exchange: Exchange) -> Reply:
    if exchange.body.startswith(b"fail"):
        raise ValueError("a fault of the handler")
    return Reply(200, exchange.body)


def _app(bodies: Bodies) -> App:
    return App([Route(("POST",), "/echo", _echo)], Keys(), bodies)


def test_one_request_more_than_there_is_room_for_comes_back_later(bodies: Bodies) -> None:
    async def scene() -> None:
        app, rest = _app(bodies), asyncio.Event()
        first = asyncio.create_task(Call(b"a" * 60, rest, b"a" * 20)(app))
        await asyncio.sleep(0)  # until it waits for its rest
        assert bodies.held == 60
        assert await Call(b"b" * 41)(app) == 503
        assert 503 in BUSY  # our own client asks again
        assert await Call(b"b" * 20)(app) == 200
        assert bodies.held == 60
        rest.set()
        assert await first == 200
        assert await Call(b"b" * 60, b"b" * 40)(app) == 200

    asyncio.run(scene())


@pytest.mark.parametrize(("parts", "leaves"), [((b"x" * 99,), True), ((b"x" * 99, b"xx"), False)])
def test_room_is_given_back_by_requests_that_leave_or_are_refused(
    parts: tuple[bytes, ...], leaves: bool, bodies: Bodies
) -> None:
    assert asyncio.run(Call(*parts, leaves=leaves)(_app(bodies))) == (0 if leaves else 503)


def test_room_is_given_back_by_requests_whose_handler_fails(bodies: Bodies) -> None:
    with pytest.raises(ValueError, match="of the handler"):
        asyncio.run(Call(b"fail")(_app(bodies)))
