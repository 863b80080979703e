"""The servers of a run as small files: what each start said, its signs of life, what it needs, what is asked of it."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

import msgpack

from weightsync.acks import FORGOTTEN_S, Server, State, Vitals
from weightsync.errors import StaleIncarnation
from weightsync.log.base import Need
from weightsync.log.files import Files, safe_name
from weightsync.log.fleet_views import FleetViews
from weightsync.orders import Adoption, Order

FOLDERS = ("servers", "seen", "needs", "orders", "adoptions")
_OF_SERVER = ("servers", "seen", "needs")


@dataclass(frozen=True)
class _Entry:
    """A server's file. `since` is by the storage's clock."""

    incarnation: str
    registration: tuple[str, float, bool]
    state: State
    held: tuple[int, int] | None
    since: float
    reason: str = ""
    vitals: tuple[int | None, int | None, int] = (None, None, 0)

    def to_bytes(self) -> bytes:
        fields = [self.incarnation, self.registration, self.state, self.held, self.since, self.reason, self.vitals]
        packed: bytes = msgpack.packb(fields)
        return packed

    @classmethod
    def from_bytes(cls, blob: bytes) -> "_Entry":
        incarnation, registration, state, held, since, reason, vitals = msgpack.unpackb(blob)
        pair = None if held is None else (held[0], held[1])
        return cls(incarnation, tuple(registration), state, pair, since, reason, tuple(vitals))


class DirectoryFleet(FleetViews):
    """The part of DirectoryLog that is about servers."""

    def __init__(self, files: Files) -> None:
        self._files, self._root = files, files.root

    def register(self, server: str, incarnation: str, url: str, lease_s: float, *, lent: bool = False) -> None:
        with self._files.locked():
            now = self._now()
            for name, silent_s in self._silent(now):
                if silent_s > FORGOTTEN_S:
                    self._remove(name)
            self._put(server, _Entry(incarnation, (url, lease_s, lent), "starting", None, now))
        self._hint("server")

    def put_ack(self, server: str, incarnation: str, version: int, digest: int, state: State) -> None:
        self._say(server, incarnation, state, (version, digest))

    def put_state(self, server: str, incarnation: str, state: State, reason: str = "") -> None:
        self._say(server, incarnation, state, None, reason)

    def renew(self, server: str, incarnation: str, vitals: Vitals | None = None) -> None:
        with self._files.locked():
            entry = self._current(server, incarnation)
            if vitals is None:
                self._files.touch(f"seen/{safe_name(server)}")
            else:
                measured = (vitals.num_running, vitals.num_waiting, vitals.num_restarts)
                self._put(server, replace(entry, vitals=measured))

    def leave(self, server: str, incarnation: str) -> None:
        with self._files.locked():
            blob = self._files.read(f"servers/{safe_name(server)}")
            if blob is None or _Entry.from_bytes(blob).incarnation != incarnation:
                return
            self._remove(safe_name(server))
        self._hint("server")

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

    def put_order(self, server: str, order: Order | None, *, obeyed: Order | None = None) -> None:
        self._ask("orders", server, _packed(order), _packed(obeyed))

    def orders(self) -> dict[str, Order]:
        return {server: Order(*fields) for server, fields in self._asked("orders")}

    def put_adoption(self, server: str, adoption: Adoption | None) -> None:
        self._ask("adoptions", server, b"" if adoption is None else msgpack.packb([adoption.url, adoption.machine]))

    def adoptions(self) -> dict[str, Adoption]:
        return {server: Adoption(*fields) for server, fields in self._asked("adoptions")}

    def _ask(self, folder: str, server: str, what: bytes, only_if: bytes = b"") -> None:
        name = f"{folder}/{safe_name(server)}"
        with self._files.locked():
            if only_if and self._files.read(name) != only_if:
                return
            if what:
                self._files.write(name, what)
            else:
                (self._root / name).unlink(missing_ok=True)
        self._hint("order")

    def _asked(self, folder: str) -> Iterator[tuple[str, list[Any]]]:
        for file in sorted((self._root / folder).glob("=*")):
            if (blob := self._files.read(f"{folder}/{file.name}")) is not None:
                yield unquote(file.name[1:]), msgpack.unpackb(blob)

    def _current(self, server: str, incarnation: str) -> _Entry:
        blob = self._files.read(f"servers/{safe_name(server)}")
        entry = None if blob is None else _Entry.from_bytes(blob)
        if entry is None or entry.incarnation != incarnation:
            current = "nobody" if entry is None else entry.incarnation
            raise StaleIncarnation(
                f"server {server} is registered as {current}, this host speaks for {incarnation}: a newer start took "
                "over. This host must stop."
            )
        return entry

    def _say(self, server: str, incarnation: str, state: State, held: tuple[int, int] | None, reason: str = "") -> None:
        with self._files.locked():
            entry = self._current(server, incarnation)
            since = entry.since if entry.state == state else self._now()
            self._put(server, replace(entry, state=state, held=held or entry.held, since=since, reason=reason))
        self._hint("server")

    def _put(self, server: str, entry: _Entry) -> None:
        name = safe_name(server)
        self._files.write(f"servers/{name}", entry.to_bytes())
        self._files.touch(f"seen/{name}")

    def _remove(self, name: str) -> None:
        for folder in _OF_SERVER:
            (self._root / folder / name).unlink(missing_ok=True)

    def _silent(self, now: float) -> list[tuple[str, float]]:
        """File names of servers, and seconds since the last sign of life of each."""
        names = [file.name for file in (self._root / "servers").glob("=*")]
        return [(name, self._files.age(f"seen/{name}", now)) for name in names]

    def _fleet(self) -> dict[str, tuple[Server, tuple[int, int] | None]]:
        now, found = self._now(), {}
        for name, silent_s in sorted(self._silent(now)):
            if (blob := self._files.read(f"servers/{name}")) is None:
                continue
            entry = _Entry.from_bytes(blob)
            url, lease_s, lent = entry.registration
            since_s = max(0.0, now - entry.since)
            vitals = Vitals(*entry.vitals)
            server = Server(entry.incarnation, url, entry.state, silent_s, lease_s, lent, entry.reason, since_s, vitals)
            found[unquote(name[1:])] = (server, entry.held)
        return found

    def _now(self) -> float:
        # The storage's clock, not this machine's: ages compare times that it gave.
        return self._files.touch("clock")

    def _hint(self, topic: str) -> None:
        self._files.write(f"hints/{topic}", b"")


def _packed(order: Order | None) -> bytes:
    if order is None:
        return b""
    packed: bytes = msgpack.packb([order.kind, float(order.within_s), order.nonce])
    return packed
