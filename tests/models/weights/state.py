"""The state of the weights model: the log, parts in the transport, trainers, servers, and faults to come.

Bits are names: the (branch, number) of the update that made them. A delta that is added to anything but its base makes
garbage. Versions form a tree, records a line: the last one is head.
"""

from dataclasses import dataclass, fields
from typing import NamedTuple

Version = tuple[int, int]
"""(branch, number): of a version, or of the update that made some bits."""
Key = tuple[str, Version, Version | None]
"""Of parts: "anchor" or "delta", the version, and of a delta its base."""

ORIGIN: Version = (0, 0)
ANCHOR, DELTA = "anchor", "delta"
BOOT, PUBLISH, FLIP, UNSURE, ADVANCE, TRAIN = "boot", "publish", "flip", "unsure", "advance", "train"


class Body(NamedTuple):
    """What parts hold: bits, and of a delta the bits that it must be added to."""

    base: Version | None
    bits: Version


class Record(NamedTuple):
    """A version in the log."""

    version: Version
    bits: Version
    delta: Key | None
    """Key of its delta's parts; None: it was published whole."""
    has_anchor: bool


class Flip(NamedTuple):
    """A flip that was sent: the length of the log that it expects, its record, and whose it is."""

    at: int
    record: Record
    claim: int = 0


class Trainer(NamedTuple):
    """A trainer process. `snapshot`: the version whose bits it keeps; None: the next version goes whole.

    `claim`: the nonce of its claim, which its updates' bits are named after, too.
    """

    phase: str = BOOT
    branch: int = 0
    number: int = 0
    bits: Version = ORIGIN
    snapshot: Version | None = None
    pending: Flip | None = None
    claim: int = 0


class Staged(NamedTuple):
    """What a host has brought near: a version, its base (None: whole), and what its parts hold."""

    version: Version
    base: Version | None
    body: Body


class Server(NamedTuple):
    """An engine and the host beside it."""

    bits: Version = ORIGIN
    engine: Version | None = ORIGIN
    """The version that the engine says it holds."""
    host: Version | None = ORIGIN
    """The version that the host believes it holds."""
    staged: Staged | None = None
    acked: Version | None = None
    acked_by: int = 0
    """Incarnation of that acknowledgement."""
    incarnation: int = 0


class Checkpoint(NamedTuple):
    number: int = 0
    bits: Version = ORIGIN


class Faults(NamedTuple):
    """How often each may still happen."""

    crashes: int = 0
    """The trainer dies, or stalls while another one starts."""
    servers: int = 0
    """A server dies and starts again from its directory."""
    replies: int = 0
    """A flip is done and never answered, or arrives late."""
    hosts: int = 0
    """A host dies while its engine activates; another one takes its place."""
    losses: int = 0
    """Parts are lost."""
    anchors: int = 0
    """An anchor is due. The fault is a trainer that dies before it commits it."""
    tails: int = 0
    """Redis loses the last flip."""
    claims: int = 0
    """Redis loses a claim, of the ledger and the log: the branch is given out again."""


NO_FAULTS = Faults()


class State(NamedTuple):
    log: tuple[Record, ...]
    parts: tuple[tuple[Key, Body], ...]
    owner: int
    """The branch that has claimed the log."""
    late: Flip | None
    """A flip that is still on its way."""
    trainer: Trainer
    old: Trainer | None
    """A trainer that stalled and may wake up."""
    checkpoint: Checkpoint
    servers: tuple[Server, ...]
    faults: Faults
    claims: int = 0
    """Claims made."""
    claimed: int = 0
    """The nonce of the one that owns the log."""
    before: tuple[int, int] = (0, 0)
    """(owner, nonce) before that claim."""

    @property
    def head(self) -> Record:
        return self.log[-1]

    def spend(self, fault: str) -> "State":
        """One fault of this kind less."""
        return self._replace(faults=self.faults._replace(**{fault: getattr(self.faults, fault) - 1}))

    def put_parts(self, key: Key, body: Body) -> "State":
        """With these parts, in place of any under the same key."""
        return self._replace(parts=tuple(sorted((dict(self.parts) | {key: body}).items(), key=repr)))

    def delete_parts(self, keys: set[Key]) -> "State":
        """Without these parts."""
        return self._replace(parts=tuple(item for item in self.parts if item[0] not in keys))


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol; False: as the first draft had it."""

    idem_flip: bool = True
    """A flip without an answer is looked up in the log before anything else. False: it counts as failed."""
    own_number: bool = True
    """A number counts updates made, and never names two sets of bits. False: head's number + 1."""
    tree_names: bool = True
    """Labels and the engine's check of a base hold branch and number. False: the number."""
    engine_base: bool = True
    """The engine refuses a delta whose base it does not hold. False: its host decides."""
    write_once: bool = True
    """A key of parts holds version and base, and is written once. False: the version."""
    ack_incarnation: bool = True
    """An acknowledgement is valid for one start of its server."""
    publish_first: bool = True
    """A resumed trainer publishes its starting version before it waits for groups."""
    ask_engine: bool = True
    """A new host acknowledges what the engine says. False: what its predecessor believed."""
    withdraw: bool = True
    """A host withdraws its acknowledgement before it activates."""
    needs: bool = True
    """A server without a path asks for an anchor, and the trainer answers also while it waits for groups."""
    committed_anchor: bool = True
    """Pruning counts committed anchors. False: also one that is being written."""
    lost_head: bool = True
    """A head behind the snapshot is published again, whole. False: the publisher insists on its base."""
    owner: bool = True
    """A flip checks the branch. False: only that its base is head."""
    claim_nonce: bool = True
    """A claim has a nonce, which a flip checks beside the branch. False: two claimants of a branch are one."""


@dataclass(frozen=True)
class Setting:
    """One configuration of the model."""

    rules: Rules = Rules()
    limit: int = 0
    versions: int = 2
    """The goal: so many are trained, and every server holds the last one."""
    servers: int = 1
    is_fresh: bool = False
    """Begin with the model directory alone. False: branch 1 has published its start, and all servers serve it."""
    faults: Faults = NO_FAULTS


RULES = tuple(field.name for field in fields(Rules))


def place_of(setting: Setting, state: State, version: Version | None, *, exact: bool = False) -> int | None:
    """Place of a version's record in the log, the newest if labels do not tell them apart."""
    if version is None:
        return None
    for place in range(len(state.log) - 1, -1, -1):
        found = state.log[place].version
        if found == version or (not setting.rules.tree_names and not exact and found[1] == version[1]):
            return place
    return None


def is_fenced(setting: Setting, state: State, branch: int, claim: int) -> bool:
    """Whether somebody else owns the log. A branch that it has not heard of lost its claim, and brings it back."""
    is_other = setting.rules.claim_nonce and claim != state.claimed
    return setting.rules.owner and (state.owner > branch or (state.owner == branch and is_other))


def anchor_place(state: State) -> int | None:
    """Place of the newest anchor that leads to head."""
    parts = dict(state.parts)
    for place in range(len(state.log) - 1, -1, -1):
        record = state.log[place]
        if record.has_anchor and anchor_key(record.version) in parts:
            return place
        if record.delta not in parts:
            return None
    return None


def anchor_key(version: Version) -> Key:
    return (ANCHOR, version, None)


def is_valid(setting: Setting, server: Server) -> bool:
    """Whether its acknowledgement counts."""
    is_current = server.acked_by == server.incarnation or not setting.rules.ack_incarnation
    return server.acked is not None and is_current


def next_place(setting: Setting, state: State, server: Server) -> tuple[int, bool] | None:
    """(place, whether whole) of the record that a server stages next; None: it is at head or has no path."""
    parts = dict(state.parts)
    place = place_of(setting, state, server.host)
    if place is not None and place + 1 < len(state.log):
        record = state.log[place + 1]
        is_newer = setting.rules.tree_names or (server.host is not None and record.version[1] > server.host[1])
        if record.delta in parts and is_newer:
            return place + 1, False
    if place == len(state.log) - 1:
        return None
    whole = anchor_place(state)
    return None if whole is None else (whole, True)


def may_train(setting: Setting, state: State, trainer: Trainer) -> bool:
    """Whether some server in rotation makes tokens that this trainer may train on."""
    for server in state.servers:
        if is_valid(setting, server) and server.engine is not None:
            branch, number = server.engine
            if branch == trainer.branch and 0 <= trainer.number - number <= setting.limit:
                return True
    return False
