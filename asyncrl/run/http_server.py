"""Serve an application over HTTP within an event loop that other parts run in, too."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import ASGIApp

from asyncrl.errors import PreflightError
from asyncrl.inference.listening import bound_socket
from asyncrl.run.http_protocol import GatewayHttp

BACKLOG = 2048  # a thousand harnesses may connect at once


class _Server(uvicorn.Server):
    """uvicorn that says when it listens, and leaves signals to the command."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int, keys: str) -> socket.socket:
    """A socket that is bound; port 0: a free one.

    Args:
        keys: the section that names host and port, for the message.
    Raises:
        PreflightError: the port is taken, or the address is not this machine's.
    """
    try:
        return bound_socket(host, port)
    except OSError as error:
        raise PreflightError(
            f"cannot listen on {keys}.host = {host}, {keys}.port = {port}: {error.strerror}. Another process may use "
            f"the port; choose another, or 0 for a free one."
        ) from error


def url_of(bound: socket.socket) -> str:
    """http://host:port of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


@asynccontextmanager
async def serving(app: ASGIApp, bound: socket.socket, *, grace_s: int = 2) -> AsyncIterator["asyncio.Task[None]"]:
    """Serve during the block, from its beginning; gives the task that serves, which ends by itself only if it fails.

    Args:
        grace_s: seconds that requests in flight get at the end.
    """
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_level="warning",
        access_log=False,  # paths have keys in them
        proxy_headers=False,  # nobody asks who a client is
        ws="none",
        http=GatewayHttp,
        backlog=BACKLOG,
        timeout_graceful_shutdown=grace_s,
        timeout_keep_alive=75,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[bound]), name="http server")
    listening = asyncio.create_task(server.listens.wait())
    try:
        await asyncio.wait((task, listening), return_when=asyncio.FIRST_COMPLETED)
        yield task
    finally:
        listening.cancel()
        server.should_exit = True
        await task
