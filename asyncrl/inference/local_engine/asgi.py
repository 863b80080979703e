"""The little HTTP that the server needs, straight on ASGI: a request, a reply, a table of routes, who may call them.

A framework's routing and request objects would cost more per request than the tiny models' own work.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any  # ASGI's own types: scopes and messages are dicts of anything
from urllib.parse import parse_qsl

from asyncrl.inference.local_engine.engine_loop import Refused
from asyncrl.inference.local_engine.request import RequestRefused

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 256 << 20
"""Of one request, read whole before it is looked at. A batch of prompts has a few MB; weights may come in base64."""

MAX_BODIES_BYTES = 1 << 30
"""Of all requests that are being read or answered; one more is asked to come back."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class ClientGone(Exception):
    """The client closed its connection before it had its answer."""


class Access(Enum):
    """Who may call a route: anyone; who has the API key; who has the admin key if there is one, else the API key."""

    OPEN = "open"
    API = "api"
    CONTROL = "control"


@dataclass(frozen=True)
class Keys:
    """Bearer keys; None asks for none."""

    api: str | None = None
    admin: str | None = None

    def allows(self, access: Access, authorization: str) -> bool:
        """Whether a request with this Authorization header may use a route. An API key does not open control routes
        when an admin key is set, as in SGLang."""
        key = self.api if access is Access.API else self.admin or self.api
        return (
            access is Access.OPEN
            or key is None
            or hmac.compare_digest(authorization.encode(), f"Bearer {key}".encode())
        )


@dataclass(frozen=True)
class Reply:
    """A whole answer."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"


to_json = json.JSONEncoder(separators=(",", ":")).encode
"""As json.dumps, which would make an encoder for each call."""


def json_reply(value: object, status: int = 200) -> Reply:
    """A JSON answer."""
    return Reply(status, to_json(value).encode())


def refusal(error: RequestRefused) -> Reply:
    """SGLang's two error shapes."""
    return json_reply({"error": str(error)} if error.bare else {"error": {"message": str(error)}}, error.status)


class Bodies:
    """Bytes of the bodies that a server holds, over all its connections."""

    def __init__(self, limit: int = MAX_BODIES_BYTES) -> None:
        self._limit, self.held = limit, 0

    def take(self, num_bytes: int) -> None:
        """Hold so many more until `give_back`. Raises RequestRefused (503) if that is more than the server holds."""
        if self.held + num_bytes > self._limit:
            raise RequestRefused(
                f"the bodies of all requests here have {self.held} bytes, with {num_bytes} more than the {self._limit} "
                "that are held at once. Ask again when others have their answers.",
                status=503,
            )
        self.held += num_bytes

    def give_back(self, num_bytes: int) -> None:
        """Let go of them."""
        self.held -= num_bytes


class Exchange:
    """One HTTP request and the way to answer it. Close it: its body counts until then."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, bodies: Bodies) -> None:
        self.scope, self._receive, self._send = scope, receive, send
        self._bodies, self._held = bodies, 0
        self.body = b""

    def close(self) -> None:
        """Let go of the body."""
        self._bodies.give_back(self._held)
        self._held, self.body = 0, b""

    @property
    def query(self) -> Mapping[str, str]:
        return dict(parse_qsl(self.scope["query_string"].decode("latin-1")))

    def authorization(self) -> str:
        return next((v.decode("latin-1") for k, v in self.scope["headers"] if k == b"authorization"), "")

    async def read(self) -> None:
        """Reads the whole body.

        Raises:
            ClientGone: the client left.
            RequestRefused: it is, or says it is, longer than is accepted; or others' bodies leave no room for it now.
        """
        parts, size = [], 0
        self._refuse_longer(next((int(v) for k, v in self.scope["headers"] if k == b"content-length"), 0))
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            size += len(part)
            self._refuse_longer(size)
            self._bodies.take(len(part))
            self._held += len(part)
            parts.append(part)
            if not message.get("more_body"):
                self.body = b"".join(parts)
                return

    def _refuse_longer(self, num_bytes: int) -> None:
        if num_bytes > MAX_BODY_BYTES:
            raise RequestRefused(f"the body has {num_bytes} bytes, at most {MAX_BODY_BYTES} are read.", status=413)

    def json(self) -> Any:  # what a client sent, of any shape
        """The body as JSON; an empty one is an empty object. Raises RequestRefused."""
        try:
            return json.loads(self.body) if self.body.strip() else {}
        except (ValueError, RecursionError) as error:
            raise RequestRefused(f"the body is not JSON: {error}") from error

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Cancels the block when the client leaves, and turns the cancellation into ClientGone."""
        task, gone = asyncio.current_task(), False
        assert task is not None

        async def watch() -> None:
            nonlocal gone
            while (await self._receive())["type"] != "http.disconnect":
                pass
            gone = True
            task.cancel()

        watcher = asyncio.create_task(watch(), name="watch for disconnect")
        try:
            yield
        except asyncio.CancelledError:
            if not gone:
                raise
            task.uncancel()
            raise ClientGone from None
        finally:
            watcher.cancel()

    async def reply(self, reply: Reply) -> None:
        """Sends a whole answer."""
        await self.start(reply.status, reply.content_type, len(reply.body))
        await self._send({"type": "http.response.body", "body": reply.body})

    async def start(self, status: int, content_type: str, length: int | None = None) -> None:
        """Sends the head of an answer; without a length the body follows in parts."""
        headers = [(b"content-type", content_type.encode())]
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def part(self, body: bytes, *, more: bool = True) -> None:
        """Sends a part of the body."""
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


Handler = Callable[[Exchange], Awaitable[Reply | None]]
"""Answers an exchange whose body has been read; None when it has sent its answer itself."""


@dataclass(frozen=True)
class Route:
    """One row of the table of routes."""

    methods: tuple[str, ...]
    path: str
    handler: Handler
    access: Access = Access.CONTROL


class App:
    """The ASGI application: a table of routes."""

    def __init__(self, routes: list[Route], keys: Keys, bodies: Bodies | None = None) -> None:
        self._keys, self._bodies = keys, bodies or Bodies()
        self._routes = {(method, route.path): route for route in routes for method in route.methods}
        self._paths = {route.path: route.methods for route in routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request; other kinds of connection are closed by returning."""
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send, self._bodies)
        try:
            await self._serve(exchange)
        finally:
            exchange.close()

    async def _serve(self, exchange: Exchange) -> None:
        try:
            reply = await self._answer(exchange)
        except ClientGone:
            return
        except RequestRefused as error:
            reply = refusal(error)
        except Refused as error:
            reply = json_reply({"success": False, "message": str(error)}, 400)
        if reply is not None:
            await exchange.reply(reply)

    async def _answer(self, exchange: Exchange) -> Reply | None:
        method, path = exchange.scope["method"], exchange.scope["path"]
        if path == "/openapi.json":
            return json_reply(self._describe())
        route = self._routes.get((method, path))
        if route is None:
            known = path in self._paths
            return json_reply({"detail": "Method Not Allowed" if known else "Not Found"}, 405 if known else 404)
        if not self._keys.allows(route.access, exchange.authorization()):
            return json_reply({"error": "Unauthorized"}, 401)
        await exchange.read()
        return await route.handler(exchange)

    def _describe(self) -> object:
        """Enough of OpenAPI for a client that asks which routes there are."""
        nothing: dict[str, object] = {}
        paths = {path: dict.fromkeys(map(str.lower, methods), nothing) for path, methods in self._paths.items()}
        return {"openapi": "3.1.0", "info": {"title": "asyncrl local server", "version": "1"}, "paths": paths}
