"""Ask one rank's part server: a few connections, kept open between versions, every wait with a deadline."""

import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from weightsync.errors import CorruptDelta, DeadlineExceeded, PartMissing, TransportError, TransportLost
from weightsync.transport.base import Deadline
from weightsync.transport.tcp import greeting
from weightsync.transport.tcp.address import address_of
from weightsync.transport.tcp.frames import (
    LENGTH,
    MAX_ANSWER,
    MAX_GREETING,
    MAX_REQUEST,
    RANGE_BYTES,
    BadFrame,
    fields_of,
    length_of,
)
from weightsync.transport.tcp.sockets import prepare, wait_at_most

_CONNECT_S = 10.0
_ATTEMPTS = 3  # a connection that was kept may have ended meanwhile, and so may all that were kept with it
_MOST_CONNECTIONS = 4  # of this process to one rank
_CREDIT = 2  # ranges asked for ahead, so that the server is never without a request while one travels

T = TypeVar("T")


class PartClient:
    """Asks one part server. Thread-safe: each call has a connection of its own while it runs."""

    def __init__(self, url: str, secret: bytes, stall_s: float) -> None:
        """
        Args:
            url: tcp://host:port, as the rank said it in the log.
            secret: what both sides have in common.
            stall_s: seconds without a byte after which the server counts as dead.
        Raises:
            TransportError: that is no address.
        """
        self.url = url
        self._address = address_of(url)
        self._secret, self._stall_s = secret, stall_s
        self._kept: list[_Connection] = []
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(_MOST_CONNECTIONS)

    def get_into(self, key: str, target: memoryview, deadline: Deadline) -> None:
        """Fill `target` with a part.

        Raises:
            PartMissing, CorruptDelta: it is not there, or of another size.
            DeadlineExceeded: not done in time, or the server is silent. TransportLost: it does not answer.
            TransportError: it refuses us.
        """
        self._call(lambda connection: connection.get_into(key, target), deadline)

    def delete(self, prefix: str, deadline: Deadline) -> int:
        """How many parts the server removed. Raises as `get_into`."""
        match self._call(lambda connection: connection.ask(["delete", prefix]), deadline):
            case ["deleted", int(count)]:
                return count
        raise self._unexpected()

    def uploads(self, prefix: str, deadline: Deadline) -> list[str]:
        """Prefixes of uploads that the server has parts of. Raises as `get_into`."""
        match self._call(lambda connection: connection.ask(["uploads", prefix]), deadline):
            case ["uploads", list(found)] if all(isinstance(upload, str) for upload in found):
                return found
        raise self._unexpected()

    def close(self) -> None:
        """Close what is kept; a call that runs keeps its connection until it is done."""
        with self._lock:
            kept, self._kept = self._kept, []
        for connection in kept:
            connection.close()

    def _call(self, work: "Callable[[_Connection], T]", deadline: Deadline) -> T:
        deadline.check()
        if not self._places.acquire(timeout=max(0.0, deadline.left())):
            raise deadline.exceeded(f"All {_MOST_CONNECTIONS} connections to {self.url} were in use.")
        try:
            for attempt in range(_ATTEMPTS):
                try:
                    return self._on_a_connection(work, deadline, fresh=attempt == _ATTEMPTS - 1)
                except TransportError:
                    raise
                except (OSError, EOFError) as error:
                    broke = isinstance(error, ConnectionError | EOFError)
                    if not broke or isinstance(error, ConnectionRefusedError) or attempt == _ATTEMPTS - 1:
                        raise self._lost(error) from error
            raise AssertionError("the last attempt returns or raises")
        finally:
            self._places.release()

    def _on_a_connection(self, work: "Callable[[_Connection], T]", deadline: Deadline, *, fresh: bool) -> T:
        with self._lock:
            connection = self._kept.pop() if self._kept and not fresh else None
        if connection is None:
            connection = _Connection(self.url, self._address, self._secret, self._stall_s, deadline)
        connection.deadline = deadline
        try:
            result = work(connection)
        except BaseException:
            # What the server still sends would be taken for the next call's answer.
            connection.close()
            raise
        with self._lock:
            self._kept.append(connection)
        return result

    def _lost(self, error: BaseException) -> TransportLost:
        return TransportLost(
            f"the trainer's part server at {self.url} does not answer ({error!r}): its rank died, or its machine "
            "cannot be reached from here. A trainer that starts again says its new address in the log, and publishes "
            "whole weights."
        )

    def _unexpected(self) -> BadFrame:
        return BadFrame(f"the part server at {self.url} answers another request than was asked.")


class _Connection:
    """One socket to a part server, greeted. `deadline` is that of the call that uses it."""

    def __init__(self, url: str, address: tuple[str, int], secret: bytes, stall_s: float, deadline: Deadline) -> None:
        self._url, self._stall_s, self.deadline = url, stall_s, deadline
        try:
            self._socket = socket.create_connection(address, timeout=self._seconds(_CONNECT_S))
        except TimeoutError as error:
            raise self._silent("take a connection", _CONNECT_S) from error
        try:
            self._socket.settimeout(None)
            prepare(self._socket)
            self._greet(secret)
        except BaseException:
            self._socket.close()
            raise

    def get_into(self, key: str, target: memoryview) -> None:
        """Ranges of the part, straight into `target`, a bounded number of them asked for ahead."""
        size = len(target)
        ranges = [(at, min(RANGE_BYTES, size - at)) for at in range(0, size, RANGE_BYTES)] or [(0, 0)]
        for i in range(len(ranges) + _CREDIT - 1):
            if i < len(ranges):
                self._send(self._requests.seal(["get", key, size, *ranges[i]], MAX_REQUEST))
            if (j := i - _CREDIT + 1) >= 0:
                self._check_part(self._answer(), key, size)
                at, length = ranges[j]
                self._receive_into(target[at : at + length])

    def ask(self, request: Sequence[Any]) -> list[Any]:
        """A request and its answer."""
        self._send(self._requests.seal(request, MAX_REQUEST))
        return self._answer()

    def close(self) -> None:
        self._socket.close()

    def _greet(self, secret: bytes) -> None:
        theirs = greeting.nonce_of_hello(fields_of(self._content(MAX_GREETING)), self._url)
        ours = greeting.new_nonce()
        self._send(greeting.introduction(secret, theirs, ours))
        greeting.check_welcome(fields_of(self._content(MAX_GREETING)), secret, theirs, ours, self._url)
        self._requests, self._answers = greeting.channels(secret, theirs, ours)

    def _check_part(self, answer: list[Any], key: str, size: int) -> None:
        match answer:
            case ["part"]:
                return
            case ["missing"]:
                raise PartMissing(f"{self._url} does not have part {key}: it was pruned, or its rank started again.")
            case ["size", int(found)]:
                raise CorruptDelta(f"part {key} has {found} bytes at {self._url}, the record says {size}.")
        raise BadFrame(f"the part server at {self._url} answers another request than was asked.")

    def _answer(self) -> list[Any]:
        return self._answers.open(self._content(MAX_ANSWER))

    def _content(self, most: int) -> bytes:
        head = bytearray(LENGTH.size)
        self._receive_into(memoryview(head))
        content = bytearray(length_of(bytes(head), most))
        self._receive_into(memoryview(content))
        return bytes(content)

    def _send(self, data: bytes) -> None:
        wait_at_most(self._socket, self._seconds(self._stall_s))
        try:
            self._socket.sendall(data)
        except BlockingIOError as error:
            raise self._silent("take a request", self._stall_s) from error

    def _receive_into(self, view: memoryview) -> None:
        at = 0
        while at < len(view):
            wait_at_most(self._socket, self._seconds(self._stall_s))
            try:
                # One call for all of it, or for what came within that time: the kernel waits, not Python's lock.
                count = self._socket.recv_into(view[at:], 0, socket.MSG_WAITALL)
            except BlockingIOError as error:
                raise self._silent("send anything", self._stall_s) from error
            if not count:
                raise EOFError(f"{self._url} closed the connection")
            at += count

    def _seconds(self, most: float) -> float:
        self.deadline.check()
        # A timeout of zero would mean not to wait at all, which is another error.
        return max(0.001, min(most, self.deadline.left()))

    def _silent(self, what: str, seconds: float) -> DeadlineExceeded:
        if self.deadline.left() <= 0:
            return self.deadline.exceeded(f"{self._url} did not {what} in time.")
        return DeadlineExceeded(
            f"{self.deadline.what}: {self._url} did not {what} for {seconds:g} s: its process or its machine hangs, or "
            "the network loses what is sent. It is asked again; slower networks need a larger weightsync.tcp.stall_s."
        )
