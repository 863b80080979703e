"""One session with an MCP server: opened, used and closed; for a program, also its process."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, PaginatedRequestParams, Tool

from asyncrl.data.values import Json
from asyncrl.envs.tools.mcp.spec import McpServerSpec

CLOSE_S = 10.0  # the SDK asks a program to leave, then ends it, then kills it, 2 s each
MAX_TOOLS = 1000  # a server whose pages do not end is broken
READ_S = 3600.0  # the caller's deadline is shorter; this bounds what nobody waits for any more


class SessionEnded(Exception):
    """The server is gone, or has dropped the session."""


class McpSession:
    """A session in a task of its own: the SDK wants its contexts left by the task that entered them."""

    def __init__(self, spec: McpServerSpec) -> None:
        self._spec = spec
        self._closing = asyncio.Event()
        self._session: asyncio.Future[ClientSession] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(), name=f"MCP session with {spec.name}")

    async def open(self) -> None:
        """Wait until the server has answered.

        Raises:
            TimeoutError: it did not, within start_timeout_s.
            SessionEnded: it cannot be reached or started; says why.
        """
        async with asyncio.timeout(self._spec.start_timeout_s):
            await asyncio.shield(self._session)

    @property
    def ended(self) -> bool:
        """Whether it is known to be over."""
        return self._task.done() or self._closing.is_set()

    async def tools(self) -> list[Tool]:
        """All tools of the server."""
        session, found, cursor = self._session.result(), list[Tool](), None
        while True:
            page = await self._while_alive(session.list_tools(params=PaginatedRequestParams(cursor=cursor)))
            found += page.tools
            cursor = page.next_cursor
            if cursor is None or len(found) > MAX_TOOLS:
                return found

    async def call(self, name: str, arguments: Mapping[str, Json]) -> CallToolResult:
        """Call a tool. If this is cancelled, close the session: the server may still be at it.

        Raises:
            SessionEnded: the server went away meanwhile; whether the call was done is not known.
            mcp.MCPError: the server refused the call.
        """
        result: CallToolResult = await self._while_alive(self._session.result().call_tool(name, dict(arguments)))
        return result

    async def close(self) -> None:
        """End it, and the program's process. Later calls do nothing more."""
        self._closing.set()
        if not self._session.done():  # it is not open yet, and may never be
            self._task.cancel()
        await asyncio.wait({self._task}, timeout=CLOSE_S)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CLOSE_S)

    async def _while_alive(self, request: Any) -> Any:  # Any: a coroutine of the SDK, and what it gives
        """What the request gives, unless the session's task ends first."""
        asked = asyncio.ensure_future(request)
        try:
            await asyncio.wait({asked, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
            raise SessionEnded(self._why())
        finally:
            asked.cancel()

    async def _live(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                read, write = await stack.enter_async_context(_streams(self._spec))
                session = await stack.enter_async_context(ClientSession(read, write, read_timeout_seconds=READ_S))
                await session.initialize()
                self._session.set_result(session)
                await self._closing.wait()
        except Exception as error:
            self._error = _innermost(error)
        finally:
            if not self._session.done():
                self._session.set_exception(SessionEnded(self._why()))
                self._session.exception()  # seen, in case nobody waits any more

    _error: BaseException | None = None

    def _why(self) -> str:
        return f"{type(self._error).__name__}: {self._error}" if self._error is not None else "it was closed"


@asynccontextmanager
async def _streams(spec: McpServerSpec) -> AsyncIterator[tuple[Any, Any]]:
    """The streams that a session speaks over."""
    if spec.url is None:
        program = StdioServerParameters(command=spec.command[0], args=list(spec.command[1:]), env=dict(spec.env))
        async with stdio_client(program) as streams:
            yield streams
        return
    timeout = httpx2.Timeout(spec.start_timeout_s, read=READ_S)
    async with (
        httpx2.AsyncClient(headers=dict(spec.headers), timeout=timeout, follow_redirects=True) as client,
        streamable_http_client(spec.url, http_client=client) as streams,
    ):
        yield streams


def _innermost(error: BaseException) -> BaseException:
    """The first error inside groups of errors, which task groups wrap around it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
