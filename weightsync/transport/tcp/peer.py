"""One reader as its part server sees it: bytes come in, bytes are owed. No socket, no clock.

A reader gets an answer, then its next request is looked at: what is owed to it is one range at most, and that is looked
up piece by piece when it can be sent. So a slow reader holds no part in memory and nobody else up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from weightsync.transport.tcp import greeting
from weightsync.transport.tcp.frames import (
    LENGTH,
    MAX_ANSWER,
    MAX_GREETING,
    MAX_REQUEST,
    BadFrame,
    Channel,
    Delete,
    Get,
    Request,
    Uploads,
    fields_of,
    length_of,
    request_of,
)
from weightsync.transport.tcp.memory import PartMemory

READ_BYTES = MAX_REQUEST
"""What a server reads of a connection at once."""


class PartGone(Exception):
    """A part left the memory while a range of it was being sent; only the end of the connection can tell the reader."""


@dataclass
class _Range:
    key: str
    at: int
    end: int


class Peer:
    """Not thread-safe: the server's loop is its only user.

    Attributes:
        trusted: the reader proved that it has the secret.
        ends: the connection is to be closed once everything is sent.
    """

    def __init__(self, memory: PartMemory, secret: bytes) -> None:
        self._memory, self._secret = memory, secret
        self._nonce = greeting.new_nonce()
        self._inbox = bytearray()
        self._words = memoryview(greeting.hello(self._nonce))
        self._range: _Range | None = None
        self._channels: tuple[Channel, Channel] | None = None
        self.ends = False

    @property
    def trusted(self) -> bool:
        return self._channels is not None

    @property
    def owes(self) -> bool:
        """Is there something to send? Only then, and only if not, is more read."""
        return bool(len(self._words)) or self._range is not None

    def take(self, data: bytes) -> None:
        """Bytes that came, at most READ_BYTES. Raises BadFrame: the connection must end."""
        self._inbox += data
        self._advance()

    def next_bytes(self, most: int) -> memoryview:
        """What to send next, at most `most` bytes; nothing if nothing is owed. Raises PartGone."""
        if len(self._words) or self._range is None:
            return self._words[:most]
        piece = self._range
        view = self._memory.view(piece.key, piece.at, min(most, piece.end - piece.at))
        if not view:
            raise PartGone(piece.key)
        return view

    def sent(self, count: int) -> None:
        """So many of these were sent. Raises BadFrame: the next request, which was here already, is none."""
        if len(self._words):
            self._words = self._words[count:]
        elif self._range is not None:
            self._range.at += count
            if self._range.at == self._range.end:
                self._range = None
        if not self.owes:
            self._advance()

    def _advance(self) -> None:
        while not self.owes and not self.ends and (content := self._next_frame()) is not None:
            if self._channels is None:
                self._greet(content)
            else:
                requests, answers = self._channels
                self._words = memoryview(answers.seal(self._answer(request_of(requests.open(content))), MAX_ANSWER))

    def _next_frame(self) -> bytes | None:
        if len(self._inbox) < LENGTH.size:
            return None
        most = MAX_REQUEST if self.trusted else MAX_GREETING
        end = LENGTH.size + length_of(bytes(self._inbox[: LENGTH.size]), most)
        if len(self._inbox) < end:
            return None
        content = bytes(self._inbox[LENGTH.size : end])
        del self._inbox[:end]
        return content

    def _greet(self, content: bytes) -> None:
        nonce = greeting.nonce_of_reader(fields_of(content), self._secret, self._nonce)
        if nonce is None:
            self.ends = True
            self._words = memoryview(
                greeting.refusal("weightsync.key and run.name must be the same on both sides, and one differs.")
            )
            return
        self._channels = greeting.channels(self._secret, self._nonce, nonce)
        self._words = memoryview(greeting.welcome(self._secret, self._nonce, nonce))

    def _answer(self, request: Request) -> list[object]:
        match request:
            case Delete(prefix):
                return ["deleted", self._memory.delete(prefix)]
            case Uploads(prefix):
                return ["uploads", _those_that_fit(self._memory.uploads(prefix))]
            case Get():
                return self._part(request)

    def _part(self, request: Get) -> list[object]:
        try:
            size = self._memory.size(request.key)
        except ValueError as error:
            raise BadFrame("a request for a part whose key is none.") from error
        if size is None:
            return ["missing"]
        if size != request.size:
            return ["size", size]
        if request.length:
            self._range = _Range(request.key, request.offset, request.offset + request.length)
        return ["part"]


def _those_that_fit(uploads: Sequence[str]) -> list[str]:
    """The first ones, if there are more than an answer takes: a sweep gets the rest next time."""
    ends = accumulate(len(upload.encode()) + 8 for upload in uploads)
    return [upload for upload, end in zip(uploads, ends, strict=True) if end <= MAX_ANSWER // 2]
