"""Which server holds which version: the record that routing and pruning read.

No I/O; the log stores these, a server's host writes its own.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["starting", "serving", "updating", "asleep", "failed", "draining", "drained"]
STATES: tuple[State, ...] = ("starting", "serving", "updating", "asleep", "failed", "draining", "drained")

FORGOTTEN_S = 3600.0
"""Seconds after which a server that fell silent is shown no more; its record goes when the next one registers."""


@dataclass(frozen=True)
class Vitals:
    """What a host measured of its server at a sign of life.

    Attributes:
        num_running, num_waiting: requests at the server, whoever sent them; None: it was not asked or does not say.
        num_restarts: lives after the first.
    """

    num_running: int | None = None
    num_waiting: int | None = None
    num_restarts: int = 0

    @property
    def num_requests(self) -> int | None:
        """Requests at the server, running and waiting."""
        return None if self.num_running is None or self.num_waiting is None else self.num_running + self.num_waiting


@dataclass(frozen=True)
class Server:
    """A server's registration: one start of it, alive for `lease_s` after its last sign of life.

    A server that restarts registers anew under another incarnation, which voids what the one before said at once
    instead of when its lease ends.
    """

    incarnation: str
    url: str
    state: State
    age_s: float
    lease_s: float
    lent: bool = False
    """Its devices are the trainer's, so that it sleeps when the wish says so; others take no notice of it."""
    reason: str = ""
    """Why it is in its state, in words; empty where the state says it all."""
    since_s: float = 0.0
    """Seconds that it has been in its state."""
    vitals: Vitals = Vitals()

    @property
    def alive(self) -> bool:
        return self.age_s <= self.lease_s

    @property
    def forgotten(self) -> bool:
        """Whether it fell silent so long ago that nobody looks for it any more."""
        return self.age_s > max(FORGOTTEN_S, self.lease_s)


@dataclass(frozen=True)
class Ack:
    """A server's word that its weights have this version's digest. Only `serving` may be given requests.

    While it is in another state the version is the last that it acknowledged in this incarnation: pruning still keeps
    what follows it. `num_requests` were there at its last sign of life; None: nobody knows.
    """

    version: int
    digest: int
    incarnation: str
    state: State
    url: str
    age_s: float
    num_requests: int | None = None


def ack_of(server: Server, version: int, digest: int) -> Ack:
    """The ack of a server that holds this version."""
    requests = server.vitals.num_requests
    return Ack(version, digest, server.incarnation, server.state, server.url, server.age_s, requests)


def serving(acks: Mapping[str, Ack], versions: Sequence[int], max_version_skew: int | None = None) -> dict[str, Ack]:
    """The servers that may be given requests.

    Args:
        acks: of living servers.
        versions: all versions in the log, ascending; the last is head.
        max_version_skew: flips that a server may be behind head; None: any number.
    """
    chosen = {name: ack for name, ack in acks.items() if ack.state == "serving"}
    if max_version_skew is None:
        return chosen
    return {
        name: ack
        for name, ack in chosen.items()
        if sum(version > ack.version for version in versions) <= max_version_skew
    }


def held_versions(acks: Mapping[str, Ack]) -> Collection[int]:
    """Versions that a living server holds."""
    return {ack.version for ack in acks.values()}
