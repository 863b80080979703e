"""Sessions with one MCP server: a bounded number, opened when needed, replaced when they break."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping
from typing import Any

from mcp import MCPError
from mcp.types import CONNECTION_CLOSED, INVALID_REQUEST, CallToolResult, Tool

from asyncrl import waits
from asyncrl.data.values import Json
from asyncrl.envs.tools.base import ToolError
from asyncrl.envs.tools.mcp.session import McpSession, SessionEnded
from asyncrl.envs.tools.mcp.spec import McpServerSpec

log = logging.getLogger(__name__)

FIRST_PAUSE_S, FIRST_SHUT_S, LONGEST_PAUSE_S = 0.25, 1.0, 60.0
UNKNOWN_SESSION = INVALID_REQUEST  # of a server that was started again: it did nothing


class Unreachable(Exception):
    """No session could be opened; says how often it was tried, and why the last one failed."""


class McpPool:
    """One server. Each call has a session to itself; sessions that are free are kept for the next ones."""

    def __init__(self, spec: McpServerSpec) -> None:
        self._spec = spec
        self._places = asyncio.Semaphore(spec.sessions)
        self._free: list[McpSession] = []
        self._all: set[McpSession] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False
        self._shut = waits.doubling(FIRST_SHUT_S, LONGEST_PAUSE_S)
        self._shut_until, self._shut_why = 0.0, ""

    async def tools(self) -> list[Tool]:
        """The server's tools.

        Raises:
            Unreachable: no session could be opened.
            SessionEnded: the server went away meanwhile.
            mcp.MCPError: it has no tools.
        """
        async with self._places:
            session = await self._open()
            tools = await session.tools()
            self._free.append(session)
            return tools

    async def call(self, tool: str, arguments: Mapping[str, Json]) -> CallToolResult:
        """Call a tool in a session. Cancelled, the session is closed, and with it what the server is at.

        Raises:
            ToolError: no session could be had, or the server went away or refused; for the model to read.
        """
        with waits.timed("tool call waits for a session with its MCP server", self._busy):
            await self._places.acquire()
        session: McpSession | None = None
        try:
            session = await self._take()
            try:
                result = await session.call(tool, arguments)
            except MCPError as error:
                if error.code != UNKNOWN_SESSION:
                    raise
                self._in_background(self._drop(session))
                session = None
                session = await self._open()
                result = await session.call(tool, arguments)
        except MCPError as error:
            gone = error.code in (CONNECTION_CLOSED, UNKNOWN_SESSION)
            self._give_back(session, broken=gone)
            raise ToolError(self._gone if gone else f"the server answered with an error: {error.message}") from None
        except SessionEnded:
            self._give_back(session, broken=True)
            raise ToolError(self._gone) from None
        except Unreachable as error:
            self._give_back(session, broken=True)
            raise ToolError(f"the server {self._spec.name} cannot be reached: {error}") from None
        except BaseException:
            self._give_back(session, broken=True)
            raise
        self._give_back(session, broken=False)
        return result

    async def close(self) -> None:
        """Close every session, and wait until the processes are gone."""
        self._closed = True
        self._free.clear()
        await asyncio.gather(*(session.close() for session in list(self._all)), *self._closing)

    async def _take(self) -> McpSession:
        while self._free:
            session = self._free.pop()
            if not session.ended:
                return session
            await self._drop(session)
        return await self._open()

    async def _open(self) -> McpSession:
        """A new session, after some attempts; a server that was not there a moment ago is not asked by every call."""
        if self._closed:
            raise Unreachable("its sessions are closed with the worker")
        if (left_s := self._shut_until - time.monotonic()) > 0:
            raise Unreachable(f"{self._shut_why}; it is tried again in {left_s:.0f} s")
        pauses, why = waits.doubling(FIRST_PAUSE_S, LONGEST_PAUSE_S), ""
        for attempt in range(self._spec.connect_attempts):
            if attempt:
                await waits.pause("tool call waits before it tries its MCP server again", next(pauses))
            session = McpSession(self._spec)
            self._all.add(session)
            try:
                await session.open()
            except (TimeoutError, SessionEnded) as error:
                why = str(error) or f"no answer within {self._spec.start_timeout_s:g} s"
                log.warning("MCP server %s (%s): attempt %d: %s", self._spec.name, self._spec.place, attempt + 1, why)
                await self._drop(session)
            except BaseException:
                self._in_background(self._drop(session))
                raise
            else:
                self._shut = waits.doubling(FIRST_SHUT_S, LONGEST_PAUSE_S)
                return session
        self._shut_until = time.monotonic() + next(self._shut)
        self._shut_why = f"{self._spec.connect_attempts} attempts failed, the last with {why}"
        raise Unreachable(self._shut_why)

    def _give_back(self, session: McpSession | None, *, broken: bool) -> None:
        """Free the place of a call; that of a broken session only when its process is gone."""
        if session is None:
            self._places.release()
        elif broken or self._closed:
            self._in_background(self._drop(session, then_free=True))
        else:
            self._free.append(session)
            self._places.release()

    async def _drop(self, session: McpSession, *, then_free: bool = False) -> None:
        try:
            await session.close()
        finally:
            self._all.discard(session)
            if then_free:
                self._places.release()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """A call that was cancelled does not wait for this; close() does."""
        task = asyncio.create_task(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    @property
    def _gone(self) -> str:
        return (
            f"the server {self._spec.name} went away, and may or may not have done what the call asks for. The next "
            "call connects again"
        )

    def _busy(self) -> str:
        return f"all {self._spec.sessions} sessions with {self._spec.name} are in use"
