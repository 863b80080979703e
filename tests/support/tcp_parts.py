"""Parts over tcp in tests: a rank that serves and a reader that asks, as one transport; and raw sockets to a server."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from weightsync.config import WeightsyncConfig
from weightsync.log import open_log
from weightsync.log.records import Upload
from weightsync.transport.base import part_key, upload_prefix
from weightsync.transport.tcp import TcpTransport, greeting
from weightsync.transport.tcp.frames import LENGTH, MAX_ANSWER, MAX_REQUEST, RANGE_BYTES, Channel, fields_of
from weightsync.transport.tcp.server import PartServer

KEY = "a secret of sixteen"
DEADLINE_S = 20.0
BLOB = np.random.default_rng(3).bytes(5 * RANGE_BYTES + 17)


def tcp_config(**settings: Any) -> WeightsyncConfig:
    """Settings of a run over tcp on this machine; `tcp` may hold settings of that section."""
    return WeightsyncConfig.model_validate({"transport": "tcp", "key": KEY, **settings})


def open_tcp(home: Path, config: WeightsyncConfig | None = None, run: str = "run") -> TcpTransport:
    """A transport of a run whose log is a folder."""
    return TcpTransport(config or tcp_config(), open_log(str(home), run))


class RankAndReader:
    """A transport whose parts cross a socket: puts by ranks that serve, everything else by a process that asks."""

    parts_outlive_writer = False
    parallel_gets = 2

    def __init__(self, home: Path, config: WeightsyncConfig | None = None, ranks: int = 4) -> None:
        self.writer, self.reader = open_tcp(home, config), open_tcp(home, config)
        for rank in range(ranks):
            self.announce(1, rank)

    def announce(self, branch: int, rank: int) -> None:
        self.writer.announce(branch, rank)

    def put_part(self, key: str, parts: Sequence[memoryview], *, deadline_s: float) -> None:
        self.writer.put_part(key, parts, deadline_s=deadline_s)

    def get_part_into(self, key: str, target: memoryview, *, deadline_s: float) -> int:
        return self.reader.get_part_into(key, target, deadline_s=deadline_s)

    def delete(self, prefix: str) -> int:
        return self.reader.delete(prefix)

    def uploads(self, prefix: str) -> list[str]:
        return self.reader.uploads(prefix)

    def close(self) -> None:
        self.reader.close()
        self.writer.close()


class RawReader:
    """A reader made of a bare socket, for what a well-behaved one never does."""

    def __init__(self, port: int, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect(("127.0.0.1", port))
        self.requests: Channel | None = None

    def greet(self, secret: bytes) -> "RawReader":
        """Prove the secret, without looking at the server's proof."""
        theirs, ours = fields_of(self.content())[2], greeting.new_nonce()
        self.socket.sendall(greeting.introduction(secret, theirs, ours))
        fields_of(self.content())
        self.requests, self.answers = greeting.channels(secret, theirs, ours)
        return self

    def ask(self, *request: Any) -> None:
        assert self.requests is not None
        self.socket.sendall(self.requests.seal(request, MAX_REQUEST))

    def answer(self) -> list[Any]:
        return self.answers.open(self.content(MAX_ANSWER))

    def content(self, most: int = MAX_ANSWER) -> bytes:
        (length,) = LENGTH.unpack(self.exactly(LENGTH.size))
        assert length <= most
        return self.exactly(length)

    def exactly(self, size: int) -> bytes:
        """Raises EOFError: the server ended the connection."""
        found = b""
        while len(found) < size:
            try:
                more = self.socket.recv(size - len(found))
            except ConnectionResetError:
                more = b""
            if not more:
                raise EOFError
            found += more
        return found

    def ended(self) -> bool:
        """Does the server end the connection? Waits for it."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        return True

    def close(self) -> None:
        self.socket.close()


@contextmanager
def serving(home: Path, config: WeightsyncConfig | None = None) -> Iterator[TcpTransport]:
    """A rank 0 that has announced itself."""
    transport = open_tcp(home, config)
    transport.announce(1, 0)
    try:
        yield transport
    finally:
        transport.close()


def key_of(version: int = 5, rank: int = 0, bucket: int = 0) -> str:
    return part_key(upload_prefix("run", Upload(version, version - 1, "n", "plan", ())), rank, bucket)


def put(transport: TcpTransport, blob: bytes = BLOB, **key: int) -> str:
    transport.put_part(key_of(**key), [memoryview(blob)], deadline_s=10.0)
    return key_of(**key)


def get(transport: TcpTransport, key: str, size: int = len(BLOB), deadline_s: float = 20.0) -> bytes:
    target = bytearray(size)
    transport.get_part_into(key, memoryview(target), deadline_s=deadline_s)
    return bytes(target)


def server_of(transport: TcpTransport) -> PartServer:
    assert transport._server is not None
    return transport._server
