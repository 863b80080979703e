"""The requests that are nearly all there are, found by their path at once; the others go through the router."""

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

Handler = Callable[[Request], Awaitable[Response]]
SESSION_PREFIX = "/s/"
"""Before a session's key or name, which stands before a protocol's path."""


class TurnDispatch:
    """The application of a gateway.

    A router tries one pattern after the other, within two layers that look for exceptions; that is a tenth of what a
    turn costs here.

    Args:
        turns: the handler of each protocol's path, for POST; with and without a session before it.
        others: everything else.
    """

    def __init__(self, turns: Mapping[str, Handler], others: ASGIApp) -> None:
        self._turns, self._others = dict(turns), others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        handler, session = self._found(scope) if scope["type"] == "http" else (None, None)
        if handler is None:
            await self._others(scope, receive, send)
            return
        scope["path_params"] = {} if session is None else {"session": session}
        response = await handler(Request(scope, receive, send))
        await response(scope, receive, send)

    def _found(self, scope: Scope) -> tuple[Handler | None, str | None]:
        path, session = scope["path"], None
        if scope["method"] != "POST":
            return None, None
        if path.startswith(SESSION_PREFIX):
            session, slash, rest = path[len(SESSION_PREFIX) :].partition("/")
            path = slash + rest
            if not session:
                return None, None
        return self._turns.get(path), session
