"""Which server a request goes to: those that may be used, the one where its episode was, the one with least to do."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from asyncrl.inference.member import Member
from asyncrl.inference.session import Session
from buffer.versions import label


def any_version(version: int) -> bool:
    """For who may start on any version."""
    del version
    return True


@dataclass
class Choosing:
    """What stands between requests and servers.

    Attributes:
        lagging: names of servers too many versions behind head.
        spared: name of a server that requests which may go elsewhere leave to those that may not.
        turn: which of servers that have as much to do comes first; another number in each worker, or all of them would
            send what they have to the same ones.
    """

    turn: int = 0
    lagging: Collection[str] = field(default_factory=frozenset)
    spared: str | None = None

    def objection(self, server: Member, may_start_on: Callable[[int], bool], only: str | None = None) -> str | None:
        """Why this server may not be asked, None if it may."""
        ack = server.ack
        if only is not None and server.name != only:
            return f"these requests are for {only} alone"
        if ack.state != "serving":
            return f"its state is {ack.state}"
        if not may_start_on(ack.version):
            how = "older than" if only is None else "not the one that"
            return f"version {label(ack.version)} is {how} this claim may start from"
        if server.name in self.lagging and only is None:  # who is named may be behind on purpose
            return f"version {label(ack.version)} is more than weightsync.max_version_skew behind head"
        return server.trouble or None

    def choose(self, servers: Iterable[Member], session: Session, may_start_on: Callable[[int], bool]) -> Member | None:
        """The server to ask now, which `session` remembers; None if there is none."""
        usable = [s for s in servers if self.objection(s, may_start_on, session.only) is None]
        if session.only is None:
            usable = [s for s in usable if s.name != self.spared] or usable
        if not usable:
            return None
        chosen = next((s for s in usable if s.name == session.server), None)
        if chosen is None:
            first = self.turn % len(usable)
            chosen = min((*usable[first:], *usable[:first]), key=lambda s: s.load)
            session.server = chosen.name
        return chosen
