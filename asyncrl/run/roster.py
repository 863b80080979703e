"""The servers of a run as an operator sees them: what the version log holds of each, in one line."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from buffer.versions import label
from weightsync import VersionLog
from weightsync.acks import Ack, Server
from weightsync.orders import Adoption, Order

LOST = "lost"
"""State of a server whose host fell silent: it is out of rotation, and nobody looks after it."""
AWAITED = "awaited"
"""State of a server that was added, and that no host looks after."""


@dataclass(frozen=True)
class Row:
    """One server.

    Attributes:
        state: a state of weightsync.acks, lost or awaited.
        since_s: seconds in it; of a lost one, since its last sign of life.
        version: label of the version that it holds, empty if it has acknowledged none.
        behind: versions between that and head.
        num_running, num_waiting: requests there at its last sign of life; None: not known.
        reason: why it is in its state, or what an operator asked of it.
    """

    name: str
    state: str
    since_s: float
    version: str
    behind: int | None
    num_running: int | None
    num_waiting: int | None
    num_restarts: int
    url: str
    lent: bool
    reason: str

    def to_json(self) -> dict[str, Any]:  # plain data for json.dump
        """Plain data."""
        return dict(self.__dict__)


def rows(log: VersionLog) -> list[Row]:
    """Every server that is known, by name. Blocks."""
    versions = [record.version for record in log.records()]
    roster, acks, orders = log.roster(), log.acks(), log.orders()
    found = [_row(name, server, acks.get(name), orders.get(name), versions) for name, server in roster.items()]
    awaited = {name: one for name, one in log.adoptions().items() if name not in roster}
    return sorted((*found, *(_awaited(name, one) for name, one in awaited.items())), key=lambda row: row.name)


def _row(name: str, server: Server, ack: Ack | None, order: Order | None, versions: Iterable[int]) -> Row:
    reason = server.reason
    if not server.alive:
        reason = f"no sign of life for {server.age_s:.0f} s, its host has ended or is cut off; it was {server.state}"
    elif order is not None and server.state not in ("draining", "drained"):
        reason = f"an operator asked it to {order.kind}, within {order.within_s:g} s. {reason}".strip()
    return Row(
        name=name,
        state=server.state if server.alive else LOST,
        since_s=server.since_s if server.alive else server.age_s,
        version="" if ack is None else label(ack.version),
        behind=None if ack is None else sum(version > ack.version for version in versions),
        num_running=server.vitals.num_running,
        num_waiting=server.vitals.num_waiting,
        num_restarts=server.vitals.num_restarts,
        url=server.url,
        lent=server.lent,
        reason=reason,
    )


def _awaited(name: str, adoption: Adoption) -> Row:
    reason = f"no host looks after it: no serve-rollout runs on {adoption.machine}, or its log says why it was given up"
    return Row(name, AWAITED, 0.0, "", None, None, None, 0, adoption.url, False, reason)
