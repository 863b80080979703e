"""The state of the admission model: entries with the age of their tokens, versions, budget, and faults to come.

One trainer that never dies, servers as one, and groups that are all of the largest size: the unit of bytes.
"""

from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

from buffer.books import IN_FLIGHT, LEASED, OPEN, READY, WAITING

LEASE, TRAIN, PUBLISH, ADVANCE, COMMIT = "lease", "train", "publish", "advance", "commit"
ALIVE, LOST, PREEMPTED = "alive", "lost", "preempted"
STARTED = -1


class Entry(NamedTuple):
    """An ordinal in the books. Versions are numbers of the one branch."""

    state: str
    oldest: int | None = None
    """Version of its oldest token; in flight and None: it has none yet."""
    parked: int | None = None
    """The same of the tokens that were parked."""
    worker: str = ""
    """In flight: ALIVE, LOST or PREEMPTED (lost with all others at once)."""
    start_from: int = STARTED
    """In flight: a server of this version or a newer one may start it; STARTED: one has."""
    failures: int = 0


class Faults(NamedTuple):
    """How often each may still happen."""

    deaths: int = 0
    """A worker dies."""
    preemptions: int = 0
    """All workers, two at least, die at once."""
    filtered: int = 0
    publishes: int = 0
    """A publish fails."""
    letters: int = 0
    """A group goes to the dead letters."""
    resubmits: int = 0
    """The operator plays a dead letter again."""
    parks: int = 0
    """A worker parks what it has."""
    stops: int = 0
    """A worker gives its group back."""


NO_FAULTS = Faults()


class State(NamedTuple):
    entries: tuple[Entry, ...]
    number: int
    """Versions made by the trainer."""
    trained: int
    """The same, as the ledger knows it."""
    head: int
    server: int
    taken: int
    phase: str
    since: int
    """Versions since the last checkpoint."""
    faults: Faults

    def set(self, ordinal: int, entry: Entry, **changes: Any) -> "State":  # fields of State
        """With another entry for one ordinal, which may be the next new one."""
        entries = (*self.entries[:ordinal], entry, *self.entries[ordinal + 1 :])
        return self._replace(entries=entries, **changes)

    def spend(self, fault: str) -> "State":
        """One fault of this kind less."""
        return self._replace(faults=self.faults._replace(**{fault: getattr(self.faults, fault) - 1}))

    def ahead(self, ordinal: int) -> int:
        """Open ordinals below this one."""
        return sum(e.state in OPEN for e in self.entries[:ordinal])


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol; False: as the first draft had it."""

    at_lease: bool = True
    """`wait` holds a lease. False: it holds the advance, when the batch is chosen already."""
    surplus: bool = True
    """Last-chance groups that do not fit into this version's batch are not waited for."""
    fresh_retry: bool = True
    """Parked tokens that can no longer be trained on are not gone on from."""
    early_ck: bool = True
    """A lease that finds too few groups while bytes refuse makes the trainer checkpoint, which frees what it holds."""
    credit: bool = True
    """A claim is charged one group from reserve on, and only new ordinals are refused. False: what is in is counted,
    and puts and retries are refused, too."""
    dead_cap: bool = True
    """Dead letters have a cap of their own, outside the budget."""
    own_number: bool = True
    """Lag is that of the trainer's own number. False: of the last version that was published."""
    retry_publish: bool = True
    """Before a lease head must be within the limit. False: the trainer waits for groups that nobody may start."""
    publish_waiting: bool = True
    """A trainer that waits for groups while head is behind its own number publishes again. False: head within the limit
    is enough, and claims that were granted for a newer one wait for it."""
    start_from: bool = True
    """A server may start a group whose version due is at most `limit` past its own. False: if head is."""
    excuse: bool = True
    """A sweep that expires most of what is in flight costs nobody a failure."""


@dataclass(frozen=True)
class Setting:
    """One configuration of the model."""

    rules: Rules = Rules()
    per_version: int = 1
    limit: int = 1
    versions: int = 3
    """The goal: so many are trained."""
    max_groups: int = 99
    """The budget of bytes, in groups."""
    checkpoint_every: int = 1
    order: Literal["oldest", "ordinal"] = "oldest"
    policy: Literal["drop", "wait"] = "drop"
    workers: int = 2
    ordinals: int = 5
    max_attempts: int = 0
    """Failures after which an ordinal dies; 0: none does."""
    strict: bool = False
    """Nothing may be born stale."""
    faults: Faults = NO_FAULTS


RULES = tuple(field.name for field in fields(Rules))


def charged(setting: Setting, state: State) -> int:
    """Groups that the budget counts."""
    entries = state.entries
    num_in = sum(e.state in (READY, LEASED) for e in entries)
    if setting.rules.credit:
        num_in += sum(e.state in (IN_FLIGHT, WAITING) for e in entries)
    else:
        num_in += sum(e.state == WAITING and e.parked is not None for e in entries)
    if not setting.rules.dead_cap:
        num_in += sum(e.state == "dead" for e in entries)
    return num_in
