"""Server-sent events: how a stream's pieces travel, and how a protocol's events follow from an answer's deltas.

Source: WHATWG HTML, section 9.2. Events are JSON in one line of ASCII: some clients end lines at U+2028 or U+0085 too,
and some decode each chunk of bytes on its own.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from typing import Protocol

from asyncrl.data.values import Json
from asyncrl.rollout.gateway.conversation import ProtocolError, TurnDelta

CONTENT_TYPE = "text/event-stream; charset=utf-8"


class EventWriter(Protocol):
    """A protocol's events of one answer. It waits for nothing, so that any order of deltas is easily tried."""

    def write(self, delta: TurnDelta) -> Iterator[bytes]:
        """The events that a delta adds."""
        ...

    def fail(self, error: ProtocolError) -> Iterator[bytes]:
        """The events that end a stream whose answer will not come."""
        ...


def event(data: Mapping[str, Json], name: str | None = None) -> bytes:
    """One event."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(data, separators=(',', ':'))}\n\n".encode("ascii")


async def written(deltas: AsyncIterator[TurnDelta], writer: EventWriter) -> AsyncIterator[bytes]:
    """The events of a stream, those of one delta in one piece; a ProtocolError of `deltas` becomes its last event.

    Closing it closes `deltas` at once: a client that has gone is no longer sampled for.
    """
    try:
        async for delta in deltas:
            piece = _joined(writer.write(delta))
            if piece:
                yield piece
    except ProtocolError as error:
        yield _joined(writer.fail(error))
    finally:
        if isinstance(deltas, AsyncGenerator):
            await deltas.aclose()


def _joined(events: Iterable[bytes]) -> bytes:
    return b"".join(events)
