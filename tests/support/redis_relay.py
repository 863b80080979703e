"""A relay before a server: lost and late replies, an address that moves to another server, TLS."""

import asyncio
import shutil
import ssl
import tempfile
from collections.abc import Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

Target = Path | tuple[str, int]
"""A unix socket, or host and port."""

_START_S = 10.0


class RedisRelay:
    """Use as a context manager. All bytes pass unchanged, but for what a test asks for."""

    def __init__(self, target: Target, *, tls: ssl.SSLContext | None = None, by_port: bool = False) -> None:
        """`tls`: the certificate to show; then, and with `by_port`, it listens on a port of loopback."""
        self._directory = Path(tempfile.mkdtemp(prefix="asyncrl-relay-"))
        self.socket = self._directory / "relay.sock"
        self.port = 0
        self._target = target
        self._tls, self._by_port = tls, by_port or tls is not None
        self._marks: list[bytes] = []
        self._num_passing: int | None = None
        self.num_lost = 0
        """Replies that were lost."""
        self.num_held = 0
        """Requests and replies that were held back."""
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._replies_pass, self._requests_pass = asyncio.Event(), asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> "RedisRelay":
        self._thread.start()
        self._do(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_S)
        self._loop.close()
        shutil.rmtree(self._directory)

    @property
    def url(self) -> str:
        if self._by_port:
            return f"{'rediss' if self._tls else 'redis'}://127.0.0.1:{self.port}"
        return f"unix://{self.socket}"

    def lose_reply(self, part: str) -> None:
        """Cut the connection of the next request that holds `part`, when the server has answered it."""
        self._marks.append(part.encode())

    @contextmanager
    def losing_reply_after(self, num_passing: int) -> Iterator[None]:
        """The same, of the request after this many, if there is one within the block."""
        self._num_passing = num_passing
        try:
            yield
        finally:
            self._num_passing = None

    def held_replies(self) -> AbstractContextManager[None]:
        """No reply passes until the end of the block; then they all do."""
        return self._held(self._replies_pass)

    def held_requests(self) -> AbstractContextManager[None]:
        """The same of requests: they reach the server late."""
        return self._held(self._requests_pass)

    @contextmanager
    def _held(self, passing: asyncio.Event) -> Iterator[None]:
        self._loop.call_soon_threadsafe(passing.clear)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(passing.set)

    def point_to(self, target: Target) -> None:
        """What moving an address does: open connections are cut, new ones lead to `target`."""
        self._target = target
        self._do(self._cut())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_START_S)

    async def _listen(self) -> None:
        self._replies_pass.set()
        self._requests_pass.set()
        if self._by_port:
            server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
            self.port = server.sockets[0].getsockname()[1]
        else:
            server = await asyncio.start_unix_server(self._accept, self.socket)
        self._server = server

    async def _end(self) -> None:
        self._server.close()
        await self._cut()

    async def _cut(self) -> None:
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._relay(reader, writer)
        except asyncio.CancelledError:
            pass  # cut; asyncio would report it as a failure of the server
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            if isinstance(self._target, Path):
                replies, requests = await asyncio.open_unix_connection(self._target)
            else:
                replies, requests = await asyncio.open_connection(*self._target)
            loses = asyncio.Event()
            try:
                there = asyncio.create_task(self._pass_on(reader, requests, loses))
                back = asyncio.create_task(self._pass_back(replies, writer, loses))
                try:
                    await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in (there, back):
                        task.cancel()
                    await asyncio.gather(there, back, return_exceptions=True)
            finally:
                requests.transport.abort()

    def _mark(self, data: bytes, loses: asyncio.Event) -> None:
        """A client waits for an answer before it sends more, so small requests come one by one."""
        is_chosen = self._num_passing == 0
        if self._num_passing is not None:
            self._num_passing = None if is_chosen else self._num_passing - 1
        found = [mark for mark in self._marks if mark in data]
        self._marks = [mark for mark in self._marks if mark not in found]
        if found or is_chosen:
            loses.set()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, loses: asyncio.Event) -> None:
        while data := await reader.read(1 << 16):
            self._mark(data, loses)
            await self._wait(self._requests_pass)
            writer.write(data)
            await writer.drain()

    async def _pass_back(
        self, replies: asyncio.StreamReader, writer: asyncio.StreamWriter, loses: asyncio.Event
    ) -> None:
        while data := await replies.read(1 << 16):
            if loses.is_set():
                self.num_lost += 1
                return
            await self._wait(self._replies_pass)
            writer.write(data)
            await writer.drain()

    async def _wait(self, passing: asyncio.Event) -> None:
        if not passing.is_set():
            self.num_held += 1
            await passing.wait()
