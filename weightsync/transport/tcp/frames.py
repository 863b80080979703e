"""Frames between a reader and a part server: length, msgpack list, and a seal once both have proved who they are.

  frame    length u32 of what follows | msgpack list | seal, 16 bytes, after the greeting
  greeting server: [MAGIC, PROTOCOL, nonce]  reader: [nonce, proof]  server: [proof]; or at any time ["refused", why]
  request  ["get", key, size, offset, length] | ["delete", prefix] | ["uploads", prefix]
  answer   ["part"], and `length` bytes of it as they are | ["missing"] | ["size", bytes] | ["deleted", n]
           | ["uploads", [prefix, ...]]

A length is checked before anything is allocated for it. The seal counts frames, so that none is repeated, left out or
put in by somebody on the way; the bytes of a part need none, because a part is sealed itself.
"""

import hmac
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from weightsync.errors import TransportError

MAX_GREETING = 1 << 10
MAX_REQUEST = 8 << 10
MAX_ANSWER = 256 << 10
RANGE_BYTES = 2 << 20
"""Bytes of a part that one request may ask for: all that a server ever owes one reader at a time."""

LENGTH = struct.Struct("<I")
SEAL_BYTES = 16


class BadFrame(TransportError):
    """Bytes that are not a frame of this protocol; the connection ends."""


@dataclass(frozen=True)
class Get:
    """Bytes `offset` to `offset + length` of a part that has `size` of them."""

    key: str
    size: int
    offset: int
    length: int


@dataclass(frozen=True)
class Delete:
    """Remove what starts with the prefix."""

    prefix: str


@dataclass(frozen=True)
class Uploads:
    """Name the uploads that start with the prefix."""

    prefix: str


Request = Get | Delete | Uploads


class Channel:
    """One direction of a connection after the greeting: seals frames in their order, or opens them."""

    def __init__(self, key: bytes) -> None:
        self._key, self._count = key, 0

    def seal(self, fields: Sequence[Any], most: int) -> bytes:
        """A whole frame. Raises BadFrame: longer than the other side would take."""
        return frame(fields, most, self._seal)

    def open(self, content: bytes) -> list[Any]:
        """The fields of what follows a length. Raises BadFrame: not what the other side sealed as its next frame."""
        body, seal = content[:-SEAL_BYTES], content[-SEAL_BYTES:]
        if len(content) < SEAL_BYTES or not hmac.compare_digest(seal, self._seal(body)):
            raise BadFrame(f"a frame of {len(content)} bytes whose seal is wrong: somebody on the way changed it.")
        return fields_of(body)

    def _seal(self, body: bytes) -> bytes:
        count, self._count = self._count, self._count + 1
        return hmac.digest(self._key, count.to_bytes(8, "little") + body, "sha256")[:SEAL_BYTES]


def frame(fields: Sequence[Any], most: int, seal: Callable[[bytes], bytes] = lambda body: b"") -> bytes:
    """Length, fields and seal. Raises BadFrame: more than `most` bytes after the length."""
    body: bytes = msgpack.packb(list(fields))
    content: bytes = body + seal(body)
    if len(content) > most:
        raise BadFrame(f"a frame of {len(content)} bytes, at most {most} are taken: a run's name or a key is too long.")
    return LENGTH.pack(len(content)) + content


def length_of(head: bytes, most: int) -> int:
    """How many bytes follow these four. Raises BadFrame: more than `most`, or none."""
    length: int = LENGTH.unpack(head)[0]
    if not 0 < length <= most:
        raise BadFrame(f"a frame that claims {length} bytes, at most {most} are taken here.")
    return length


def fields_of(body: bytes) -> list[Any]:
    """The fields of an unsealed frame. Raises BadFrame: not a list."""
    try:
        fields = msgpack.unpackb(body)
    # RecursionError and OverflowError: what deep nesting and odd timestamps raise in some builds of msgpack.
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise BadFrame(f"a frame of {len(body)} bytes that msgpack cannot read ({error!r}).") from error
    if not isinstance(fields, list) or not fields:
        raise BadFrame(f"a frame that is {type(fields).__name__}, expected a list.")
    return fields


def request_of(fields: Sequence[Any]) -> Request:
    """The request that a frame holds. Raises BadFrame: none of them."""
    match fields:
        case ["get", str(key), int(size), int(offset), int(length)]:
            if bool not in map(type, fields) and 0 <= length <= RANGE_BYTES and 0 <= offset <= size - length:
                return Get(key, size, offset, length)
        case ["delete", str(prefix)]:
            return Delete(prefix)
        case ["uploads", str(prefix)]:
            return Uploads(prefix)
    raise BadFrame(f"no request that this build knows: {shown(fields)}.")


def shown(fields: Sequence[Any]) -> str:
    """What a frame holds, for a message: never what a stranger wrote, nor as deep as he nested it."""
    kinds = ", ".join(type(field).__name__ for field in fields[:8])
    return f"{len(fields)} fields ({kinds})"
