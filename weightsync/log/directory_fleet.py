"""The servers of a run as small files: what each start said, its signs of life, and what it needs."""

from collections.abc import Collection, Mapping
from urllib.parse import unquote

import msgpack

from weightsync.acks import Ack, Server, State
from weightsync.errors import StaleIncarnation
from weightsync.log.base import Need
from weightsync.log.files import Files, safe_name

FOLDERS = ("servers", "seen", "needs")


class DirectoryFleet:
    """The part of DirectoryLog that is about servers."""

    def __init__(self, files: Files) -> None:
        self._files, self._root = files, files.root

    def register(self, server: str, incarnation: str, url: str, lease_s: float, *, lent: bool = False) -> None:
        with self._files.locked():
            self._put_server(server, incarnation, (url, lease_s, lent), "starting", None)
        self._hint("server")

    def put_ack(self, server: str, incarnation: str, version: int, digest: int, state: State) -> None:
        self._say(server, incarnation, state, (version, digest))

    def put_state(self, server: str, incarnation: str, state: State) -> None:
        self._say(server, incarnation, state, None)

    def renew(self, server: str, incarnation: str) -> None:
        with self._files.locked():
            self._current(server, incarnation)
            self._files.touch(f"seen/{safe_name(server)}")

    def leave(self, server: str, incarnation: str) -> None:
        with self._files.locked():
            blob = self._files.read(f"servers/{safe_name(server)}")
            if blob is None or msgpack.unpackb(blob)[0] != incarnation:
                return
            for folder in ("servers", "seen", "needs"):
                (self._root / folder / safe_name(server)).unlink(missing_ok=True)
        self._hint("server")

    def servers(self) -> Mapping[str, Server]:
        return {name: server for name, (server, _) in self._fleet().items()}

    def acks(self) -> dict[str, Ack]:
        return {
            name: Ack(*held, server.incarnation, server.state, server.url, server.age_s)
            for name, (server, held) in self._fleet().items()
            if held is not None
        }

    def need(self, server: str, reason: str, failed: str = "") -> None:
        name, blob = f"needs/{safe_name(server)}", msgpack.packb([reason, failed])
        if self._files.read(name) != blob:
            self._files.write(name, blob)
            self._hint("need")

    def needs(self) -> list[Need]:
        now, found = self._now(), []
        for file in sorted((self._root / "needs").glob("=*")):
            if (blob := self._files.read(f"needs/{file.name}")) is not None:
                reason, failed = msgpack.unpackb(blob)
                found.append(Need(unquote(file.name[1:]), reason, failed, self._files.age(f"needs/{file.name}", now)))
        return found

    def answered(self, servers: Collection[str]) -> None:
        for server in servers:
            (self._root / "needs" / safe_name(server)).unlink(missing_ok=True)

    def _current(self, server: str, incarnation: str) -> tuple[tuple[str, float, bool], tuple[int, int] | None]:
        blob = self._files.read(f"servers/{safe_name(server)}")
        current, registration, _, held = msgpack.unpackb(blob) if blob is not None else ("nobody", (), "", None)
        if current != incarnation:
            raise StaleIncarnation(
                f"server {server} is registered as {current}, this host speaks for {incarnation}: a newer start took "
                "over. This host must stop."
            )
        return tuple(registration), None if held is None else (held[0], held[1])

    def _say(self, server: str, incarnation: str, state: State, held: tuple[int, int] | None) -> None:
        with self._files.locked():
            registration, before = self._current(server, incarnation)
            self._put_server(server, incarnation, registration, state, held or before)
        self._hint("server")

    def _put_server(
        self,
        server: str,
        incarnation: str,
        registration: tuple[str, float, bool],
        state: State,
        held: tuple[int, int] | None,
    ) -> None:
        name = safe_name(server)
        self._files.write(f"servers/{name}", msgpack.packb([incarnation, registration, state, held]))
        self._files.touch(f"seen/{name}")

    def _fleet(self) -> dict[str, tuple[Server, tuple[int, int] | None]]:
        now, found = self._now(), {}
        for file in sorted((self._root / "servers").glob("=*")):
            if (blob := self._files.read(f"servers/{file.name}")) is None:
                continue
            incarnation, (url, lease_s, lent), state, held = msgpack.unpackb(blob)
            server = Server(incarnation, url, state, self._files.age(f"seen/{file.name}", now), lease_s, lent)
            if server.alive:
                found[unquote(file.name[1:])] = (server, None if held is None else (held[0], held[1]))
        return found

    def _now(self) -> float:
        # The storage's clock, not this machine's: ages compare times that it gave.
        return self._files.touch("clock")

    def _hint(self, topic: str) -> None:
        self._files.write(f"hints/{topic}", b"")
