"""The gateway's HTTP: bounded, and with a word for an application whose client has left."""

import asyncio

from asyncrl.inference.http_protocol import BoundedHttp
from asyncrl.rollout.gateway.exchange import CONNECTION_LOST


class GatewayHttp(BoundedHttp):
    """One connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base class's
        """A client has connected."""
        self._lost: asyncio.Future[None] = self.loop.create_future()
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left."""
        self._lost.set_result(None)
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A request has begun."""
        super().on_message_begin()
        self.scope["state"][CONNECTION_LOST] = self._lost
