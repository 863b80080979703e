"""The state of the ledger model: entries, claims, trainers, checkpoints, and the faults that may still happen."""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from buffer.books import LEASED, READY, WAITING

Version = tuple[int, int]
"""(branch, number)."""

BOOT, LEASE, GIVE_BACK, TRAIN, ADVANCE, COMMIT = "boot", "lease", "give back", "train", "advance", "commit"
PLAYS, WRITTEN = "plays", "has written"


class Entry(NamedTuple):
    """An ordinal in the books."""

    state: str
    attempt: int
    token: int
    """Of the claim; 0 once whoever held it has lost the ordinal."""
    version: Version | None = None
    payload: int = 0
    """Token of whoever wrote what lies under its payload key; 0: nothing is there."""
    step: int | None = None
    """While leased: the number of the version that it was leased at, or TRAINED_STEP."""
    poison: int = 0


class Books(NamedTuple):
    """What Redis holds. Its head of the weights is always (branch, trained) here; the weights model has the rest."""

    entries: tuple[Entry, ...] = ()
    branch: int = 0
    trained: int = 0
    taken: tuple[int, ...] = ()
    nonce: int = 0
    """Of whoever opened the branch."""

    def set(self, ordinal: int, **changes: Any) -> "Books":  # fields of Entry
        """With another entry for one ordinal."""
        entry = self.entries[ordinal]._replace(**changes)
        return self._replace(entries=(*self.entries[:ordinal], entry, *self.entries[ordinal + 1 :]))

    def wait(self, ordinal: int) -> "Books":
        """-> waiting; the payload goes, and whoever held the ordinal has lost it."""
        return self.set(ordinal, state=WAITING, token=0, version=None, payload=0, step=None)

    def give_back_leased(self) -> "Books":
        """All leased -> ready."""
        back = (e._replace(state=READY, step=None) if e.state == LEASED else e for e in self.entries)
        return self._replace(entries=tuple(back))


class Worker(NamedTuple):
    """A worker that holds, or believes that it holds, an ordinal."""

    ordinal: int
    attempt: int
    token: int
    version: Version
    phase: str


class Trainer(NamedTuple):
    """A trainer process. `since`: trained since its last commit. `history`: all that its lineage has trained."""

    phase: str = BOOT
    branch: int = 0
    number: int = 0
    batch: tuple[int, ...] = ()
    since: tuple[int, ...] = ()
    history: tuple[int, ...] = ()
    nonce: int = 0


class Checkpoint(NamedTuple):
    branch: int
    number: int
    history: tuple[int, ...]


class Faults(NamedTuple):
    """How often each may still happen."""

    crashes: int = 0
    """The trainer dies, or stalls while another one starts."""
    workers: int = 0
    """A worker dies, fails its group, or stalls past its deadline."""
    replies: int = 0
    """A call is done and its caller never hears of it."""
    filtered: int = 0
    tails: int = 0
    """Redis goes back to what it had on disk."""
    older: int = 0
    """A trainer resumes from a checkpoint that is not the newest."""


NO_FAULTS = Faults()


class State(NamedTuple):
    books: Books
    forks: tuple[Version, ...]
    """By branch: the version that it left its parent at."""
    workers: tuple[Worker | None, ...]
    trainer: Trainer
    old: Trainer | None
    """A trainer that stalled and may wake up."""
    checkpoints: tuple[Checkpoint, ...]
    saved: Books | None
    """What Redis has on disk, where that is all it may come back with."""
    faults: Faults

    def spend(self, fault: str) -> "State":
        """One fault of this kind less."""
        return self._replace(faults=self.faults._replace(**{fault: getattr(self.faults, fault) - 1}))


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol; False: as the first draft had it."""

    by_place: bool = True
    """A waiting ordinal is admitted by the open ordinals ahead of it. False: by all that are open."""
    window: bool = True
    """Admission by set sizes. False: started < (limit + trained + 1) * per_version."""
    unique_branch: bool = True
    """The ledger allocates the branch. False: the checkpoint's branch + 1."""
    branch_nonce: bool = True
    """A trainer's calls carry the nonce that it opened its branch with. False: the branch alone, which is given out
    twice where Redis loses the first time."""
    branch_first: bool = True
    """The newest checkpoint is that of the highest branch, then number. False: of the highest number."""
    reopen: bool = True
    """recover reopens what counts as consumed and is not in the checkpoint."""
    lease_idem: bool = True
    """A lease of the same step answers the same groups."""
    put_idem: bool = True
    """A repeated put is recognised once its group is in. False: it is fenced, and its payload removed."""
    no_expiry: bool = True
    """Leased groups do not expire."""
    own_ledger: bool = True
    """What the trainer's lineage has trained is committed again, not trained; a lease carries its own number."""
    nonce: bool = True
    """The caller draws a token, and the payload's key holds it. False: the attempt's number."""
    tree_lag: bool = True
    """Lag is distance in the tree of versions. False: the difference of numbers."""
    poison: bool = True
    """A batch that kills its trainer three times dies."""


@dataclass(frozen=True)
class Setting:
    """One configuration of the model."""

    rules: Rules = Rules()
    per_version: int = 1
    per_version_later: int = 0
    """From the second branch on; 0: the same."""
    limit: int = 0
    versions: int = 2
    """The goal: so many are trained."""
    ordinals: int = 4
    workers: int = 1
    poisonous: tuple[int, ...] = ()
    """Ordinals that kill every trainer that trains on them."""
    faults: Faults = NO_FAULTS

    def groups(self, branch: int) -> int:
        """Groups per version on this branch."""
        return self.per_version_later or self.per_version if branch > 1 else self.per_version


RULES = tuple(field.name for field in fields(Rules))


def distance(forks: tuple[Version, ...], one: Version, other: Version) -> int:
    """Versions between two versions along the tree, as protocols.md defines it: slow and obvious."""
    ours, theirs = _path(forks, one), _path(forks, other)
    deepest = max(set(ours) & set(theirs))
    return one[1] + other[1] - 2 * min(ours[deepest], theirs[deepest])


def _path(forks: tuple[Version, ...], version: Version) -> dict[int, int]:
    branch, number = version
    steps = {branch: number}
    while branch:
        branch, fork = forks[branch]
        number = min(number, fork)
        steps[branch] = number
    return steps
