"""An application served beside other parts of an event loop."""

import socket

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from asyncrl.errors import PreflightError
from asyncrl.run.http_server import listen, serving, url_of
from tests.support.event_loop import in_event_loop


async def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


def test_a_port_that_is_taken_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PreflightError, match=rf"gateway\.port = {port}.*choose another") as refused:
            listen("127.0.0.1", port, "gateway")
    assert refused.value.exit_code == 3


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(PreflightError, match=r"gateway\.host = 192\.0\.2\.1"):
        listen("192.0.2.1", 0, "gateway")


@in_event_loop
async def test_it_answers_from_the_beginning_of_the_block_to_its_end() -> None:
    with listen("127.0.0.1", 0, "gateway") as bound:
        url = url_of(bound)
        async with serving(Starlette(routes=[Route("/", hello)]), bound) as server, httpx.AsyncClient() as client:
            assert (await client.get(url)).text == "hello"
            assert not server.done()
    assert server.done()
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(url)
