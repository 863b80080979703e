"""HTTP on a parser in C, which costs a request less CPU than uvicorn's own default, with heads of bounded length and
replies in one piece."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 << 10
"""Of one request, its line included; what comes in the same read as its end is not counted."""


class BoundedHttp(HttpToolsProtocol):
    """One connection. The parser keeps a head of any length in memory, so one that does not end is cut here."""

    _num_head_bytes = 0
    _is_in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base class's
        """A client has connected."""
        super().connection_made(JoinedWrites(transport, self.loop))  # type: ignore[arg-type]  # what is used of one

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        if self._is_in_head:
            self._num_head_bytes += len(data)
        super().data_received(data)
        if self._is_in_head and self._num_head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The head of the request has more than {MAX_HEAD_BYTES} bytes.")

    def on_headers_complete(self) -> None:
        """The head has ended."""
        self._is_in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body has ended: what comes next is a head, or the end of the connection, which is looked for."""
        self._is_in_head, self._num_head_bytes = True, 0
        super().on_message_complete()
        if not self.pipeline:
            self.flow.resume_reading()


class JoinedWrites:
    """A transport that sends what is written in one step of the event loop as one piece.

    A reply is written as its head and its body: sent apart they are two calls of the system here, and two there.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:  # Any: what a transport has besides
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send soon."""
        if not self._parts:
            self._loop.call_soon(self._send)
        self._parts.append(data)

    def close(self) -> None:
        """Send what is left, then close."""
        self._send()
        self._transport.close()

    def _send(self) -> None:
        if self._parts and not self._transport.is_closing():
            self._transport.write(b"".join(self._parts))
        self._parts.clear()
