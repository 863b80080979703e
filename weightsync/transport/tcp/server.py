"""The part server of one trainer rank: one thread, many readers, a turn of bounded bytes for each.

waits for  readers' requests, room in their sockets        ends by   close, or the end of the process
limits     connections, bytes of a request, seconds of silence; parts are sent from where they lie, never copied
"""

import logging
import selectors
import socket
import threading
from contextlib import suppress
from time import monotonic

from weightsync.config import TcpConfig
from weightsync.errors import TransportError
from weightsync.transport.tcp.frames import BadFrame
from weightsync.transport.tcp.greeting import refusal
from weightsync.transport.tcp.memory import PartMemory
from weightsync.transport.tcp.peer import READ_BYTES, PartGone, Peer
from weightsync.transport.tcp.sockets import hold_back, listening, prepare

logger = logging.getLogger(__name__)

TURN_BYTES = 1 << 20
"""Bytes that one reader gets before the next one has its turn."""

_GREETING_S = 10.0  # for a stranger to prove who he is
_IDLE_S = 900.0  # a reader keeps its connection between versions
_LOOK_S = 0.5  # between two looks for the silent
_COMPLAIN_S = 10.0  # a flood of strangers must not be a flood of log lines


class PartServer:
    """Listens from its construction on. `close` ends it."""

    def __init__(self, memory: PartMemory, secret: bytes, config: TcpConfig) -> None:
        """Raises TransportError: no port of the range is free, or the address is not this machine's."""
        self._memory, self._secret, self._config = memory, secret, config
        self._listener = listening(config)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._bell, self._ringer = socket.socketpair()
        self._readers: dict[socket.socket, _Reader] = {}
        self._closed = threading.Event()
        self._listens = False
        self._complained, self._quiet = -_COMPLAIN_S, 0
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="weightsync-parts", daemon=True)
        self._thread.start()

    @property
    def num_readers(self) -> int:
        """Open connections."""
        return len(self._readers)

    def check(self) -> None:
        """Raises TransportError: the server ended, so parts that are put now would reach nobody."""
        if not self._thread.is_alive():
            raise TransportError(
                f"the part server on port {self.port} ended ({self.error!r}): no server can read this rank's parts. "
                "Start the trainer again."
            )

    def close(self) -> None:
        """Stop listening and drop every reader."""
        self._closed.set()
        with suppress(OSError):  # a thread that ended by itself has closed its bell
            self._ringer.send(b"!")
        self._thread.join()

    def _run(self) -> None:
        try:
            self._selector.register(self._bell, selectors.EVENT_READ)
            next_look = monotonic()
            while not self._closed.is_set():
                if (now := monotonic()) >= next_look:
                    self._listen()
                    self._drop_the_silent(now)
                    next_look = now + _LOOK_S
                for key, _ in self._selector.select(next_look - now if self._readers or not self._listens else None):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.data is not None and key.data.connection in self._readers:  # not dropped meanwhile
                        self._turn(key.data)
        except BaseException as error:
            self.error = error
            logger.exception("weightsync: the part server on port %d ended", self.port)
        finally:
            for reader in list(self._readers.values()):
                self._drop(reader)
            for end in (self._listener, self._bell, self._ringer, self._selector):
                end.close()

    def _listen(self) -> None:
        if not self._listens:
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._listens = True

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
            connection.setblocking(False)
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            # Out of descriptors: whoever waits is accepted at the next look, when some may be free.
            self._complain(f"a reader cannot be accepted: {error}")
            self._selector.unregister(self._listener)
            self._listens = False
            return
        if len(self._readers) >= self._config.max_connections and not self._drop_a_stranger():
            self._refuse(connection)
            return
        reader = _Reader(connection, Peer(self._memory, self._secret), monotonic())
        self._readers[connection] = reader
        self._selector.register(connection, reader.waits_for, reader)
        self._turn(reader, first=True)

    def _refuse(self, connection: socket.socket) -> None:
        most = self._config.max_connections
        self._complain(f"a reader was refused: all {most} connections are taken (weightsync.tcp.max_connections)")
        with connection:
            try:
                connection.send(refusal(f"all its {most} connections are taken; raise weightsync.tcp.max_connections."))
            except OSError as error:
                logger.debug("weightsync: a refused reader did not wait for the reason: %s", error)

    def _drop_a_stranger(self) -> bool:
        strangers = [reader for reader in self._readers.values() if not reader.peer.trusted]
        if strangers:
            self._drop(min(strangers, key=lambda reader: reader.born))
        return bool(strangers)

    def _turn(self, reader: "_Reader", *, first: bool = False) -> None:
        """Read or send for one reader, without blocking and at most TURN_BYTES."""
        try:
            if first:
                prepare(reader.connection)
                hold_back(reader.connection, TURN_BYTES)
            if not reader.peer.owes:
                data = reader.connection.recv(READ_BYTES)
                if not data:
                    self._drop(reader)
                    return
                reader.since = monotonic()
                reader.peer.take(data)
            self._send(reader)
        except BlockingIOError:
            pass
        except (BadFrame, PartGone) as error:
            if isinstance(error, BadFrame):
                self._complain(f"a reader's connection ends: {error}")
            self._drop(reader)
            return
        except OSError as error:
            logger.debug("weightsync: a reader is gone: %s", error)
            self._drop(reader)
            return
        if reader.peer.ends and not reader.peer.owes:
            self._complain("a reader was refused: it does not have this run's weightsync.key")
            self._drop(reader)
        elif reader.waits_for != self._selector.get_key(reader.connection).events:
            self._selector.modify(reader.connection, reader.waits_for, reader)

    def _send(self, reader: "_Reader") -> None:
        left = TURN_BYTES
        while left > 0 and len(view := reader.peer.next_bytes(left)):
            count = reader.connection.send(view)
            reader.since = monotonic()
            reader.peer.sent(count)
            left -= count

    def _drop_the_silent(self, now: float) -> None:
        for reader in list(self._readers.values()):
            if reader.peer.trusted:
                is_silent = now - reader.since > (self._config.stall_s if reader.peer.owes else _IDLE_S)
            else:
                is_silent = now - reader.born > _GREETING_S
            if is_silent:
                self._drop(reader)

    def _drop(self, reader: "_Reader") -> None:
        del self._readers[reader.connection]
        self._selector.unregister(reader.connection)
        reader.connection.close()

    def _complain(self, text: str) -> None:
        now = monotonic()
        if now - self._complained < _COMPLAIN_S:
            self._quiet += 1
            return
        more = f" ({self._quiet} more of these meanwhile)" if self._quiet else ""
        logger.warning("weightsync: part server on port %d: %s%s", self.port, text, more)
        self._complained, self._quiet = now, 0


class _Reader:
    """A connection, its peer, when it came, and when it last moved a byte."""

    def __init__(self, connection: socket.socket, peer: Peer, born: float) -> None:
        self.connection, self.peer, self.born, self.since = connection, peer, born, born

    @property
    def waits_for(self) -> int:
        return selectors.EVENT_WRITE if self.peer.owes else selectors.EVENT_READ
