"""One HTTP request of the gateway: its body within limits, its errors in the protocol's form, its client watched."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from asyncrl.data.values import Json, replace_surrogates
from asyncrl.rollout.gateway.conversation import ProtocolError
from asyncrl.rollout.gateway.server_sent_events import CONTENT_TYPE

T = TypeVar("T")
CLIENT_CLOSED = 499  # nobody reads it; what proxies log for it
CONNECTION_LOST = "connection_lost"
"""In the state of a request's scope: a future that is done when the client has left. A server need not give it, but
without it a task of its own waits for that."""


async def read_object(request: Request, max_bytes: int) -> tuple[bytes, dict[str, Json]]:
    """The body of a request, as it came and as a JSON object; an empty one is an empty object.

    Raises:
        ProtocolError: it is too long, no JSON or no object.
    """
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > max_bytes:
                raise ProtocolError(
                    413, "too_large", f"The body has more than gateway.max_body_bytes = {max_bytes} bytes."
                )
            parts.append(part)
    except ClientDisconnect as error:
        raise ProtocolError(CLIENT_CLOSED, "invalid_request", "The client left.") from error
    raw = b"".join(parts)
    try:
        value: Json = json.loads(raw or b"{}")
    except (ValueError, RecursionError) as error:
        raise ProtocolError(400, "invalid_request", f"The body is not JSON: {error}") from error
    if b"\\ud" in raw or b"\\uD" in raw:  # half of a pair could not be encoded later
        value, _ = replace_surrogates(value)
    if not isinstance(value, dict):
        raise ProtocolError(400, "invalid_request", "The body must be a JSON object.")
    return raw, value


async def while_connected(request: Request, answering: Coroutine[None, None, T]) -> T:
    """Await `answering`, and cancel it when the client leaves. The body must have been read.

    Raises:
        ProtocolError: the client left.
    """
    task = asyncio.ensure_future(answering)
    try:
        await done_while_connected(request, task)
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))


async def done_while_connected(request: Request, task: "asyncio.Future[T]") -> None:
    """Wait until a task is done, which others may wait for too: it goes on. The body must have been read.

    Raises:
        ProtocolError: the client left before.
    """
    lost = request.scope.get("state", {}).get(CONNECTION_LOST)
    gone = asyncio.ensure_future(_gone(request)) if lost is None else lost
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        if lost is None:
            gone.cancel()
    if not task.done():
        raise ProtocolError(CLIENT_CLOSED, "invalid_request", "The client left.")


class Bodies:
    """The bodies of requests in flight: how long one may be, and all of them together.

    Args:
        max_bytes: of one.
        max_all_bytes: of all. One whose length is not said beforehand counts as the longest.
    """

    def __init__(self, max_bytes: int, max_all_bytes: int) -> None:
        self.max_bytes, self._max_all_bytes, self._num_bytes = max_bytes, max(max_bytes, max_all_bytes), 0

    @contextmanager
    def held(self, request: Request) -> Iterator[None]:
        """Count a request's body for the block.

        Raises:
            ProtocolError: there is no room for it now.
        """
        said = request.headers.get("content-length", "")
        size = min(int(said), self.max_bytes) if said.isdecimal() else self.max_bytes
        if self._num_bytes + size > self._max_all_bytes:
            raise ProtocolError(
                429,
                "rate_limit",
                f"Requests in flight have {self._num_bytes} bytes of bodies, gateway.max_bytes is "
                f"{self._max_all_bytes}.",
                retry_after_s=1.0,
            )
        self._num_bytes += size
        try:
            yield
        finally:
            self._num_bytes -= size


class TurnStream(StreamingResponse):
    """A turn as a stream of events; what is held for it is let go when the stream or its client ends."""

    def __init__(self, events: AsyncIterator[bytes], held: ExitStack) -> None:
        super().__init__(events, media_type=CONTENT_TYPE, headers={"cache-control": "no-cache"})
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        with self._held:
            await super().__call__(scope, receive, send)


def reply(body: Mapping[str, Json], status: int = 200) -> Response:
    """A JSON reply."""
    data = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    return Response(data, status, media_type="application/json")


def refusal(error: ProtocolError, render: Callable[[ProtocolError], Mapping[str, Json]]) -> Response:
    """The reply to what is refused, in a protocol's form."""
    response = reply(render(error), error.status)
    if error.retry_after_s is not None:
        response.headers["retry-after"] = str(max(1, round(error.retry_after_s)))
    return response


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
