"""Messages between the pool and its processes: JSON with a length in front, so that integers stay exact."""

import asyncio
import json
import socket
from collections.abc import Mapping

from asyncrl.data.values import Json

MAX_BYTES = 64 << 20  # an answer and its row; a larger one is a mistake, not a message


def frame(message: Mapping[str, Json]) -> bytes:
    """A message ready to be sent. Raises ValueError if it is too large or holds what JSON cannot."""
    blob = json.dumps(message, allow_nan=False).encode()
    if len(blob) > MAX_BYTES:
        raise ValueError(f"a message of {len(blob)} bytes is over the limit of {MAX_BYTES}")
    return len(blob).to_bytes(4, "little") + blob


async def receive(reader: asyncio.StreamReader) -> dict[str, Json]:
    """The next message. Raises IncompleteReadError when the other side is gone."""
    length = int.from_bytes(await reader.readexactly(4), "little")
    return _message(await reader.readexactly(_checked(length)))


def receive_blocking(connection: socket.socket) -> dict[str, Json] | None:
    """The next message, or None when the other side is gone."""
    head = _exactly(connection, 4)
    body = head and _exactly(connection, _checked(int.from_bytes(head, "little")))
    return _message(body) if body else None


def _exactly(connection: socket.socket, num_bytes: int) -> bytes | None:
    found = bytearray()
    while len(found) < num_bytes:
        chunk = connection.recv(num_bytes - len(found))
        if not chunk:
            return None
        found += chunk
    return bytes(found)


def _checked(length: int) -> int:
    if not 0 < length <= MAX_BYTES:
        raise ValueError(f"a message of {length} bytes is outside 1 to {MAX_BYTES}")
    return length


def _message(blob: bytes) -> dict[str, Json]:
    value = json.loads(blob)
    if not isinstance(value, dict):
        raise ValueError("a message must be a JSON object")
    return value
