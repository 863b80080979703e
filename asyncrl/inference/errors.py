"""What can go wrong between a client and an inference server, by what the caller should do about it.

ServerError (asyncrl.errors)
 +-- ServerUnavailable   no usable answer (dropped, refused, timed out, 5xx): try another server
 |    +-- ServerBusy      it asks to come back later (429, 503, ...): nothing failed
 |         +-- FellAsleep  its device was taken back while the request waited at its door
 +-- RequestRefused      the server understood and refused (4xx): the same request fails anywhere
 +-- MalformedAnswer     the answer contradicts itself or cannot be placed in a version: not to be trained on
"""

from asyncrl.errors import ServerError

BUSY = (408, 425, 429, 503)
"""Statuses that ask to come back."""


class ServerUnavailable(ServerError):
    """No usable answer came; the request may succeed on another server or later."""


class ServerBusy(ServerUnavailable):
    """The server asks to come back later; that is no failure of the request nor of the server."""


class FellAsleep(ServerBusy):
    """The server sleeps, and the request came too late to be answered before; another one may take it."""


class RequestRefused(ServerError):
    """The server refused this request for good; repeating it elsewhere would be refused there too."""


class MalformedAnswer(ServerError):
    """An answer whose parts contradict each other; `reason` is the name it is counted under."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason, self.message = reason, message

    def __str__(self) -> str:
        return self.message
