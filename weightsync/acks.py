"""Which server holds which version: the record that routing and pruning read.

No I/O; the log stores these, a server's host writes its own.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["starting", "serving", "updating", "asleep", "failed"]
STATES: tuple[State, ...] = ("starting", "serving", "updating", "asleep", "failed")


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

    @property
    def alive(self) -> bool:
        return self.age_s <= self.lease_s


@dataclass(frozen=True)
class Ack:
    """A server's word that its weights have this version's digest. Only `serving` may be given requests.

    While `updating`, `asleep` or `failed` the version is the last that it acknowledged in this incarnation: pruning
    still keeps what follows it.
    """

    version: int
    digest: int
    incarnation: str
    state: State
    url: str
    age_s: float


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
