"""The seam of the version log: records and head, what servers hold and need, and hints to wait on."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from weightsync.acks import Ack, Server, State, Vitals
from weightsync.errors import Fenced
from weightsync.log.records import MergedDelta, Upload, VersionRecord
from weightsync.orders import Adoption, Order

Wish = Literal["serve", "sleep"]

TOPICS = ("head", "anchor", "server", "need", "wish", "pin", "order")
"""What a hint may be about."""


@dataclass(frozen=True)
class Need:
    """A server that has no path to head, and why.

    `failed` is the nonce of the upload it could not read, "" if it found no path at all: an anchor under another nonce
    answers the need.
    """

    server: str
    reason: str
    failed: str
    age_s: float


@dataclass(frozen=True)
class Pin:
    """A server that is to stay at a version while newer ones are published: what it answers then is of one version."""

    server: str
    version: int


class Watch(Protocol):
    """One reader's place in the stream of hints. Not shared between threads that wait for different things."""

    def wait(self, deadline_s: float) -> bool:
        """Block until something of the topics changed since the last call (or since the watch was made).

        Returns:
            False if `deadline_s` seconds passed. A hint may be missed when the log loses its tail: read again then.
        """
        ...


class VersionLog(Protocol):
    """Records of versions and the state of the fleet. In log/redis and log/directory; test_version_log.py holds both.

    Every method is atomic and may be repeated after a lost answer with the same effect. One object is one client: what
    it claimed it claimed for itself, so that two processes of one branch are told apart.

    Raises (all methods):
        LogLost: no answer within the bounded time of retries.
    """

    run: str

    # versions
    def claim(self, branch: int) -> None:
        """Own the log as `branch`; from here on no older branch can flip, and no other claimant of this branch.

        A branch is claimed twice where its first claim was lost with the log's tail, or the ledger's: the last
        claimant owns it. A client that claimed nothing is judged by its branch alone.

        Raises:
            Fenced: a newer branch owns the log.
        """
        ...

    def confirm(self, branch: int) -> None:
        """Raises Fenced if this client may not flip for `branch` any more."""
        ...

    def owner(self) -> int:
        """The branch that owns the log; 0 before the first claim."""
        ...

    def flip(self, base: int | None, record: VersionRecord) -> None:
        """Make `record` head, if head is `base` (None: the log is empty) and its branch owns the log.

        The anchor that the record carries is committed with it. A repeat (same version and nonce) is done.
        Version 0.0 needs no owner, only an empty log.

        Raises:
            Fenced: another branch, or another claimant of this one, owns the log.
            BaseMismatch: head is not `base`, or the version is not above it.
        """
        ...

    def commit_anchor(self, branch: int, anchor: Upload) -> None:
        """Put an anchor beside the record of its version.

        Raises:
            Fenced: another branch owns the log.
            BaseMismatch: the version has no record (any more).
        """
        ...

    def commit_merged(self, branch: int, merged: MergedDelta) -> None:
        """Put a delta over several versions beside the record of the one at which it ends.

        Raises:
            Fenced: another branch owns the log.
            BaseMismatch: one of the two versions has no record (any more).
        """
        ...

    def head(self) -> VersionRecord | None:
        """The newest version."""
        ...

    def record(self, version: int) -> VersionRecord | None:
        """One version's record, None if there is none or it was pruned."""
        ...

    def records(self) -> list[VersionRecord]:
        """All records, ascending; the last is head."""
        ...

    def digest_of(self, version: int) -> int | None:
        """The digest of a version that was head once, also after its record was pruned."""
        ...

    def prune(
        self,
        branch: int,
        versions: Collection[int],
        anchors: Collection[int],
        merged: Collection[tuple[int, int]] = (),
    ) -> None:
        """Remove records, and anchors and merged deltas beside records that stay. Never head's record.

        Args:
            merged: (base, version) of each. Those that begin or end at a record that goes need not be named.
        Raises:
            Fenced: another branch owns the log.
        """
        ...

    def put_document(self, name: str, blob: bytes) -> None:
        """Keep a manifest or plan under its id; written once, never changed."""
        ...

    def document(self, name: str) -> bytes | None: ...

    # where parts are, for a transport that leaves them with their writer
    def put_endpoint(self, branch: int, rank: int, url: str) -> None:
        """Parts that `rank` of the trainer puts are got at `url`. What ranks of older branches said is void.

        Raises:
            Fenced: another branch owns the log, or said where its parts are.
        """
        ...

    def endpoints(self) -> dict[int, str]:
        """Where each rank of the newest branch that said so has its parts."""
        ...

    # servers
    def register(self, server: str, incarnation: str, url: str, lease_s: float, *, lent: bool = False) -> None:
        """A server started: what an earlier incarnation said is void. `lent`: on devices of the trainer's."""
        ...

    def put_ack(self, server: str, incarnation: str, version: int, digest: int, state: State) -> None:
        """The server holds `version`. Raises StaleIncarnation."""
        ...

    def put_state(self, server: str, incarnation: str, state: State, reason: str = "") -> None:
        """Its state without a new version; `updating` takes it out of rotation. Raises StaleIncarnation."""
        ...

    def renew(self, server: str, incarnation: str, vitals: Vitals | None = None) -> None:
        """A sign of life, with what was measured. Raises StaleIncarnation."""
        ...

    def leave(self, server: str, incarnation: str) -> None:
        """The server stopped in order. A later incarnation is left alone."""
        ...

    def servers(self) -> Mapping[str, Server]:
        """Living registrations."""
        ...

    def roster(self) -> Mapping[str, Server]:
        """All registrations, also those whose lease has ended, until they are forgotten."""
        ...

    def forget(self, server: str) -> None:
        """Drop the registration of a server whose lease has ended; one that lives is left alone."""
        ...

    def acks(self) -> dict[str, Ack]:
        """Living servers that acknowledged a version in this incarnation."""
        ...

    # needs and wishes
    def need(self, server: str, reason: str, failed: str = "") -> None:
        """`server` has no path to head."""
        ...

    def needs(self) -> list[Need]: ...

    def answered(self, servers: Collection[str]) -> None:
        """Remove their needs."""
        ...

    # what an operator asks
    def put_order(self, server: str, order: Order | None, *, obeyed: Order | None = None) -> None:
        """Ask something of one server, in place of what was asked before; None takes it back.

        Args:
            obeyed: do so only while this is what is asked: of who obeyed it.
        """
        ...

    def orders(self) -> Mapping[str, Order]:
        """What is asked, by server."""
        ...

    def put_adoption(self, server: str, adoption: Adoption | None) -> None:
        """Have a server adopted under this name; None: not any more."""
        ...

    def adoptions(self) -> Mapping[str, Adoption]:
        """Servers to adopt, by name."""
        ...

    def put_wish(self, wish: Wish) -> None:
        """Ask the servers on devices of the trainer's to sleep, or to serve."""
        ...

    def wish(self) -> Wish: ...

    def put_pin(self, branch: int, pin: Pin | None) -> None:
        """Have one server stay at a version of `branch`, or none.

        To be put before the version is head: a server that is past it does not go back.

        Raises:
            Fenced: another branch owns the log.
        """
        ...

    def pin(self) -> Pin | None:
        """The pin, while the branch that put it owns the log."""
        ...

    # waiting
    def watch(self, topics: Collection[str] = TOPICS) -> Watch:
        """A place in the stream of hints, from now on."""
        ...

    def wait(self, deadline_s: float) -> bool:
        """Wait on a watch of all topics that this object's callers share."""
        ...

    def close(self) -> None: ...


def fenced(what: str, owner: int) -> Fenced:
    """The error of a client that does not own the log (any more)."""
    return Fenced(
        f"{what}: branch {owner} owns the log. A newer trainer took over (of the same branch, if this is ours: its "
        "first claim was lost); this one must stop publishing."
    )
