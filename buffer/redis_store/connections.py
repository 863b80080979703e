"""A bounded pool of redis-py connections to one server; one command, or several in one go, with their answers.

redis-py makes and reads the connections (sockets, TLS, login, the protocol). Its clients and pools are not used: they
retry by themselves and sleep where nobody can wake them, check out a connection for 30 us, and after an interruption
between a command and its answer give the connection to the next command, which then reads the answer of the first.
Here a connection is reused only if every answer was read; all others are closed.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import BoundedSemaphore
from typing import Any, Protocol

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from buffer.redis_store.address import Address

Command = Sequence[str | bytes | int]

MAX_CONNECTIONS = 128
"""Of one process to one server. A thread that waits for hints holds one; servers allow 10,000 by default."""

_CONNECT_S, _TOPOLOGY_S = 5.0, 2.0
_PIECE = 1 << 20
_READ_SIZE = 1 << 18  # a payload in one or two reads; redis-py's own is 64 KiB
_LARGE = 1 << 16
_KEEPALIVE = {"socket_keepalive": True}


class _Line(Protocol):
    """What is used of redis-py's connections."""

    def connect(self) -> None: ...
    def disconnect(self) -> None: ...
    def send_packed_command(self, command: Iterable[bytes | memoryview]) -> None: ...
    def read_response(self) -> Any: ...


class Connections:
    """Thread-safe. A call blocks for a free connection at most `timeout_s`, and as long for each answer."""

    def __init__(self, kind: Callable[..., _Line], settings: Mapping[str, Any], timeout_s: float) -> None:
        self._kind = kind
        self._settings = settings
        self._timeout_s = timeout_s
        self._room = BoundedSemaphore(MAX_CONNECTIONS)
        self._idle: deque[_Line] = deque()
        self._closed = False

    def ask(self, command: Command, *, asking: bool = False) -> Any:
        """The answer to one command, as the server gave it: bytes, integers, None, and lists of them.

        Args:
            asking: a cluster said that this node takes the command while a slot moves to it.
        Raises:
            redis.RedisError: what the server or the connection says.
        """
        return self.ask_all([("ASKING",), command] if asking else [command])[-1]

    def ask_all(self, commands: Sequence[Command]) -> list[Any]:
        """The answers to commands that are sent together. An error answer is raised when all have been read."""
        found = self.try_all(commands)
        for answer in found:
            if isinstance(answer, redis.ResponseError):
                raise answer
        return found

    def try_all(self, commands: Sequence[Command]) -> list[Any]:
        """The same; an error answer stands in its place in the list."""
        connection = self._take()
        try:
            _send(connection, commands)
            answers = [_answer(connection) for _ in commands]
        except BaseException:
            # Interrupted, timed out or cut off: the answer may still come, and must reach nobody.
            connection.disconnect()
            raise
        else:
            self._idle.append(connection)
            if self._closed:  # also by a close() of this moment, which has not seen the connection
                self.drop_idle()
        finally:
            self._room.release()
        return answers

    def close(self) -> None:
        """Close what nobody uses, and what is in use as soon as its answer has been read."""
        self._closed = True
        self.drop_idle()

    def drop_idle(self) -> None:
        """Close the connections that nobody uses: after a failure they are likely to be dead too."""
        while self._idle:
            try:
                self._idle.pop().disconnect()
            except IndexError:
                return

    def _take(self) -> _Line:
        if not self._room.acquire(timeout=self._timeout_s):
            raise redis.ConnectionError(
                f"all {MAX_CONNECTIONS} connections of this process were in use for {self._timeout_s} s"
            )
        try:
            return self._idle.pop()  # the one used last: it is the least likely to be dead
        except IndexError:
            pass
        try:
            connection = self._kind(**self._settings)
            connection.connect()
        except BaseException:
            self._room.release()
            raise
        return connection


def connections_to(address: Address, host: str, port: int, timeout_s: float) -> Connections:
    """Connections to the server at host and port, with the login of the address; to its socket if it names one."""
    return _connections(address, host, port, timeout_s, address.login, address.db)


def ask_once(address: Address, host: str, port: int, command: Command, *, sentinel: bool = False) -> Any:
    """The answer to a question about who holds what, by a connection of its own and within a few seconds: the one who
    is asked may be the one that has died."""
    login = address.sentinel_login if sentinel else address.login
    connections = _connections(address, host, port, _TOPOLOGY_S, login, db=0)
    try:
        return connections.ask(command)
    finally:
        connections.close()


def _connections(
    address: Address, host: str, port: int, timeout_s: float, login: Mapping[str, object], db: int
) -> Connections:
    connect_s = min(timeout_s, _CONNECT_S)
    settings: dict[str, Any] = {**login, "db": db, "socket_timeout": timeout_s, "socket_connect_timeout": connect_s}
    # redis-py's Retry counts attempts and knows no deadline: one attempt. RESP2: lists where RESP3 has maps.
    settings |= {"retry": Retry(NoBackoff(), 0), "protocol": 2, "socket_read_size": _READ_SIZE}
    if address.path:
        return Connections(redis.UnixDomainSocketConnection, {**settings, "path": address.path}, timeout_s)
    kind: Callable[..., _Line] = redis.SSLConnection if address.is_tls else redis.Connection
    return Connections(kind, {**settings, **_KEEPALIVE, "host": host, "port": port}, timeout_s)


def _answer(connection: _Line) -> Any:
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error


def _send(connection: _Line, commands: Sequence[Command]) -> None:
    parts: list[bytes] = []
    for command in commands:
        # redis-py's own packing looks at every argument in Python, which costs more than sending them.
        parts += _around_blobs(command) if any(map(_is_large, command)) else [hiredis.pack_command(tuple(command))]
    connection.send_packed_command(_pieces(parts))


def _is_large(part: str | bytes | int) -> bool:
    return isinstance(part, bytes) and len(part) >= _LARGE


def _around_blobs(command: Command) -> list[bytes]:
    """A command that carries a large blob, which is left as it is."""
    parts, small = list[bytes](), [b"*%d\r\n" % len(command)]
    for part in command:
        blob = part if isinstance(part, bytes) else str(part).encode()
        small.append(b"$%d\r\n" % len(blob))
        if len(blob) < _LARGE:
            small += (blob, b"\r\n")
        else:
            parts += (b"".join(small), blob)
            small = [b"\r\n"]
    return [*parts, b"".join(small)]


def _pieces(parts: Sequence[bytes]) -> Iterable[bytes | memoryview]:
    """What is sent in one go. Up to 1 MiB together: a copy costs less than waking the server once more. More than that
    without a copy, and in pieces: the timeout is for one piece."""
    if sum(map(len, parts)) <= _PIECE:
        return [b"".join(parts)]
    return (memoryview(part)[at : at + _PIECE] for part in parts for at in range(0, len(part), _PIECE))
