"""A proxy before a unix socket that loses replies: the server has done the command, the caller never hears of it."""

import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread


class LossyProxy:
    """Use as a context manager. `lose_reply(part)` loses the reply to the next request that holds `part`."""

    def __init__(self, target: Path) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="asyncrl-proxy-"))
        self.socket = self._directory / "proxy.sock"
        self._target = target
        self._lock = Lock()
        self._marks: list[bytes] = []
        self.num_lost = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._open: list[socket.socket] = []

    def __enter__(self) -> "LossyProxy":
        self._listener.bind(str(self.socket))
        self._listener.listen()
        Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            everything = [self._listener, *self._open]
        for connection in everything:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        shutil.rmtree(self._directory)

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def lose_reply(self, part: str) -> None:
        with self._lock:
            self._marks.append(part.encode())

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(self._target))
            with self._lock:
                self._open += [client, server]
            loses = [False]
            Thread(target=self._requests, args=(client, server, loses), daemon=True).start()
            Thread(target=self._replies, args=(server, client, loses), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, loses: list[bool]) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                with self._lock:
                    for mark in self._marks:
                        if mark in data:
                            self._marks.remove(mark)
                            loses[0] = True
                            break
                server.sendall(data)
        _shut(server)

    def _replies(self, server: socket.socket, client: socket.socket, loses: list[bool]) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if loses[0]:
                    self.num_lost += 1
                    break
                client.sendall(data)
        _shut(client)
        _shut(server)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
