"""A version log with its receivers in memory, for tests of hosts: versions are numbers, weights are digests."""

import threading
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.fake_sglang import FakeServer
from weightsync.acks import State, Vitals
from weightsync.errors import ChainBroken, DigestMismatch
from weightsync.orders import Order


@dataclass(frozen=True)
class FakeTicket:
    """What a receiver stages. kind: delta, anchor or inspect."""

    kind: str
    base: int | None
    target: int
    digest: int
    num_bytes: int = 100


@dataclass
class FakeLog:
    """What was published, and what hosts said. Version v has digest v + 1000."""

    versions: list[int] = field(default_factory=list)
    current_wish: str = "serve"
    anchors: bool = True
    acks: list[tuple[str, int, str]] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)
    renewals: int = 0
    left: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    withdrawn: list[tuple[str, str]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    vitals: Vitals = field(default_factory=Vitals)
    order: Order | None = None
    ticket: FakeTicket | None = None
    changed: threading.Event = field(default_factory=threading.Event)

    def publish(self, version: int) -> None:
        self.versions.append(version)
        self.changed.set()

    def wish(self, wish: str) -> None:
        self.current_wish = wish
        self.changed.set()

    def ask(self, order: Order | None) -> None:
        """An operator asks, or takes it back."""
        self.order = order
        self.changed.set()

    def loads_into(self, server: FakeServer, start: int = 0) -> None:
        """Give the server a weight loader that takes this log's tickets, and weights of version `start`."""
        held = [start, start + 1000]

        def load(server: FakeServer) -> None:
            ticket, code = self.ticket, 0
            assert ticket is not None
            if ticket.kind == "delta" and ticket.base != held[0]:
                code = 1
            elif ticket.kind != "inspect":
                held[:] = [ticket.target, ticket.digest]
            version, digest = held
            server.status = [code, version >> 32, version & 0xFFFFFFFF, digest >> 32, digest & 0xFFFFFFFF, 7]

        server.loader = load


class FakeReceiver:
    """The receiver of one life."""

    def __init__(self, log: FakeLog, incarnation: str, url: str, stage_dir: Path) -> None:
        self.log, self.incarnation, self.url, self.stage_dir = log, incarnation, url, stage_dir

    def head(self) -> int | None:
        return self.log.versions[-1] if self.log.versions else None

    def wait(self, deadline_s: float) -> bool:
        woken = self.log.changed.wait(min(deadline_s, 0.05))
        self.log.changed.clear()
        return woken

    def wish(self) -> str:
        return self.log.current_wish

    def stage(self, have: int | None) -> FakeTicket | None:
        head = self.log.versions[-1]
        if have == head:
            return None
        if have is None and not self.log.anchors:
            self.log.needs.append("no path")
            raise ChainBroken("no path")
        kind = "anchor" if have is None else "delta"
        self.log.ticket = FakeTicket(kind, have, head, head + 1000)
        return self.log.ticket

    def stage_inspect(self) -> FakeTicket:
        self.log.ticket = FakeTicket("inspect", None, 0, 0)
        return self.log.ticket

    def acknowledge(self, version: int, digest: int, state: State = "serving") -> None:
        if digest != version + 1000:
            self.log.needs.append("mismatch")
            raise DigestMismatch(f"digest {digest} at {version}")
        self.log.acks.append((self.incarnation, version, state))
        self.log.states.append(state)

    def withdraw(self, state: State = "updating", reason: str = "") -> None:
        self.log.states.append(state)
        self.log.reasons.append(reason)
        self.log.withdrawn.append((self.incarnation, state))

    def renew(self, vitals: Vitals | None = None) -> None:
        self.log.renewals += 1
        self.log.vitals = vitals or self.log.vitals

    def order(self) -> Order | None:
        return self.log.order

    def obeyed(self, order: Order) -> None:
        if self.log.order == order:
            self.log.order = None

    def need(self, reason: str) -> None:
        self.log.needs.append(reason)

    def leave(self) -> None:
        self.log.left.append(self.incarnation)

    def close(self) -> None:
        self.log.closed.append(self.incarnation)
