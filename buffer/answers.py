"""What the replay buffer answers: claims, batches, and the reasons why there is none."""

from collections.abc import Mapping
from dataclasses import dataclass

from buffer.draws import Draw
from buffer.versions import effective, unpack


@dataclass(frozen=True, slots=True)
class Claim:
    """A worker's hold on an ordinal, until its deadline unless it is renewed."""

    ordinal: int
    attempt: int
    token: str
    start_from: int
    """Smallest effective number of a server on which the group may start."""
    branch: int
    trained: int
    """Number of the trained version when the claim was granted."""
    limit: int
    groups_per_version: int
    commons: Mapping[int, int]
    """older branch -> deepest number it has in common with `branch`."""
    parked: "Parked | None" = None
    """Unfinished episodes of the last owner; `fetch_partials` reads them. None: start from the prompt."""
    draw: Draw | None = None
    """Which prompt it is, recorded when the ordinal was first reserved. None: the ordinal alone says it."""

    @property
    def gid(self) -> str:
        return f"{self.ordinal}.{self.attempt}"

    def may_start_on(self, version: int) -> bool:
        """Whether a server at this version is new enough.

        A branch newer than the claim's is: the trainer has resumed meanwhile, and no server will go back for this
        claim.
        """
        branch, number = unpack(version)
        if branch > self.branch:
            return True
        at = number if branch == self.branch else effective(number, self.commons.get(branch, 0))
        return at >= self.start_from


@dataclass(frozen=True, slots=True)
class Parked:
    """What an ordinal's last owner parked. sampled: tokens of each episode that has some."""

    key: str
    num_bytes: int
    xxh3: str
    sampled: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NotAdmitted:
    """Nothing to do now. reason: window, bytes, paused, no_trainer or stopped; or draw: others have passed the draws
    that were offered, so offer from next_position on."""

    reason: str
    detail: str
    last_hint: str
    next_position: int = 0


@dataclass(frozen=True, slots=True)
class RenewAnswer:
    """go_on False: stop playing the group. reason: "" (go on), done, doomed or stopped."""

    go_on: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One leased group, without its payload."""

    ordinal: int
    attempt: int
    key: str
    num_bytes: int
    xxh3: str
    lag: int
    tokens: tuple[int, ...]
    """Per trajectory, all its tokens."""
    sampled: tuple[int, ...]
    """Per trajectory, those the policy sampled."""
    rewards: tuple[float | None, ...]
    data_source: str
    age_s: float
    """Seconds since it was put."""

    @property
    def gid(self) -> str:
        return f"{self.ordinal}.{self.attempt}"


@dataclass(frozen=True, slots=True)
class LeftGroup:
    """A group that left at a lease instead of being trained. outcome: waiting (resubmitted) or discarded."""

    ordinal: int
    attempt: int
    reason: str
    outcome: str
    lag: int
    tokens: tuple[int, ...]
    sampled: tuple[int, ...]
    data_source: str


@dataclass(frozen=True, slots=True)
class Leased:
    """The batch of a step, by ordinal."""

    entries: tuple[Entry, ...]
    left: tuple[LeftGroup, ...]


@dataclass(frozen=True, slots=True)
class StaleGroup:
    """A last-chance group in flight that a lease waits for."""

    ordinal: int
    age_s: float
    worker: str


@dataclass(frozen=True, slots=True)
class NotReady:
    """No batch now; groups may have left all the same."""

    detail: str
    left: tuple[LeftGroup, ...]
    waiting_for: tuple[StaleGroup, ...]
    """Under policy `wait`: the wait is named stale_groups."""
    last_hint: str
    bytes_refused: bool
    """No new prompt starts for lack of bytes: a checkpoint now would free what has been trained."""
    num_missing: int = 1
    """Groups that must come in before a lease can succeed."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A group that died. `entry` is None where its payload is gone; otherwise `fetch` reads it."""

    ordinal: int
    attempt: int
    reason: str
    error: str
    died_ms: int
    entry: Entry | None


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What a sweep found."""

    expired: tuple[int, ...]
    dead: tuple[int, ...]
    guarded: bool
    """The server had restarted, or its clock went back: deadlines were moved and nothing expired."""
    excused: bool
    """Most of in_flight expired at once: it cost nobody a failure."""
    num_deleted: int
    """Payloads deleted: trash that its owner left, and payloads that were never put."""
