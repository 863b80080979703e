"""The seam between policy and mechanism: one method per transition of the ledger, each atomic, and their answers.

Implemented by `memory_store.MemoryStore` (runs `buffer.ledger` under a lock) and `redis_store.RedisStore` (one Lua
script per transition); held to tests/contract/test_store.py. Both draw no token, read no config and decide no
policy: they get integers and keys.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from buffer.books import NO_INDEX, Books, Card, Index, Spent
from buffer.draws import NO_RESULT, Draw, PassRate, Result
from buffer.lineage import Ledger

RECORD_NUMBERS = ("branch", "trained", "limit", "per_version", "paused", "stopped", "num_stops")
"""Fields of the run record besides those that were registered and `evaluation`; "0" where nobody has written one."""

Clock = Callable[[], int]
"""Milliseconds, in place of the server's clock: for tests."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings that transitions compare with."""

    claim_ms: int
    max_attempts: int
    max_bytes: int
    max_group_bytes: int
    max_dead_bytes: int
    max_stale: int
    max_draws: int
    on_stale: str
    order: str


@dataclass(frozen=True, slots=True)
class Granted:
    """A reserve that was admitted. `commons` is the fork point of every older branch with the current one."""

    ordinal: int
    attempt: int
    ahead: int
    taken: int
    branch: int
    trained: int
    limit: int
    per_version: int
    commons: Mapping[int, int]
    parked_key: str = ""
    parked: Index = NO_INDEX
    draw: Draw | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """A reserve that was not admitted. next_position: of the draws that it offered, the first that it may take."""

    reason: str
    ahead: int
    taken: int
    window: int
    num_bytes: int
    last_hint: str
    next_position: int = 0


@dataclass(frozen=True, slots=True)
class Renewed:
    """`held`: the claim is in flight and lives on. Otherwise its group is already in (`done`) or it is `fenced`."""

    state: str
    trained: int
    ahead: int
    taken: int
    stopped: bool
    effective: int | None


@dataclass(frozen=True, slots=True)
class Left:
    """A group that left the happy path at a lease."""

    ordinal: int
    attempt: int
    effective: int
    outcome: str
    index: Index


@dataclass(frozen=True, slots=True)
class Taken:
    """A group that a lease took, or had taken before."""

    ordinal: int
    effective: int
    card: Card


@dataclass(frozen=True, slots=True)
class Batch:
    """The answer to a lease. `status`: ok, short (too few groups), held (waits for `held_by`), fenced or behind."""

    status: str
    branch: int
    trained: int
    now_ms: int
    taken: tuple[Taken, ...] = ()
    left: tuple[Left, ...] = ()
    held_by: tuple[tuple[int, int, str], ...] = ()
    """(ordinal, milliseconds since its reserve, worker) of the groups that a held lease waits for."""
    num_ready: int = 0
    num_in_flight: int = 0
    num_waiting: int = 0
    bytes_refused: bool = False
    last_hint: str = ""
    trash: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """The answer to a call of the trainer. `status`: ok, fenced, behind; `trash`: payloads for the caller to unlink."""

    status: str
    branch: int
    trained: int
    trash: tuple[str, ...] = ()
    evaluation: str = ""


@dataclass(frozen=True, slots=True)
class Swept:
    """The answer to a sweep. `guarded`: deadlines were moved instead; `excused`: the expired cost nobody a failure."""

    expired: tuple[int, ...]
    dead: tuple[int, ...]
    guarded: bool
    excused: bool
    trash: tuple[str, ...]


class Waited(NamedTuple):
    """What a wait for hints saw.

    Attributes:
        last: id of the newest hint.
        ended: whether what came ends the wait; False: its deadline passed.
        num_ready: groups that came in. More than were waited for: whoever waits on after `last` may have them all.
    """

    last: str
    ended: bool
    num_ready: int


class Store(Protocol):
    """The ledger of one run. In memory_store, redis_store; held to tests/contract/test_store.py."""

    run: str
    writes_payloads: bool
    """Whether put takes the payload with it, which saves a round trip; otherwise it has been written before."""

    def register(self, fields: Mapping[str, str]) -> Mapping[str, str]: ...
    def record(self) -> Mapping[str, str]: ...
    def reserve(self, token: str, worker: str, limits: Limits, offered: Sequence[Draw] = ()) -> Granted | Refused: ...
    def pass_rates(self, prompts: Sequence[int]) -> tuple[PassRate | None, ...]: ...
    def renew(
        self, ordinal: int, token: str, oldest: tuple[int, int] | None, num_sampled: int, limits: Limits
    ) -> Renewed: ...
    def put(
        self,
        ordinal: int,
        token: str,
        key: str,
        index: Index,
        limits: Limits,
        blob: bytes | None = None,
        result: Result = NO_RESULT,
    ) -> tuple[str, tuple[str, ...]]: ...
    def park(self, ordinal: int, token: str, key: str, index: Index) -> tuple[str, tuple[str, ...]]: ...
    def filter(
        self, ordinal: int, token: str, reason: str, spent: Spent, result: Result = NO_RESULT
    ) -> tuple[str, tuple[str, ...]]: ...
    def release(
        self, ordinal: int, token: str, reason: str, error: str, kind: str, spent: Spent, limits: Limits
    ) -> tuple[str, tuple[str, ...]]: ...
    def lease(
        self,
        branch: int,
        nonce: str,
        number: int,
        step: int,
        count: int,
        oldest_allowed: int,
        wait_ms: int,
        limits: Limits,
        after: tuple[str, float] | None = None,
    ) -> Batch:
        """after: (id of a hint, seconds): not before there is a newer one, or so many have passed."""
        ...

    def give_back(self, branch: int, nonce: str, ordinals: Sequence[int], reason: str, limits: Limits) -> Done: ...
    def advance(self, branch: int, nonce: str, number: int, limit: int, per_version: int, window: int) -> Done: ...
    def commit(self, branch: int, nonce: str, ledger: Ledger) -> Done: ...
    def recover(
        self,
        nonce: str,
        ledger: Ledger,
        number: int,
        limit: int,
        per_version: int,
        window: int,
        seen: int,
        end: int,
        limits: Limits,
    ) -> Done: ...
    def sweep(self, limits: Limits) -> Swept: ...
    def resubmit(self, ordinals: Sequence[int]) -> tuple[tuple[int, ...], tuple[str, ...]]: ...
    def purge(self, ordinals: Sequence[int]) -> tuple[tuple[int, ...], tuple[str, ...]]: ...
    def operate(self, fields: Mapping[str, str]) -> None: ...
    def evaluate(self, branch: int, nonce: str, label: str, closed: str, spent: Sequence[Spent]) -> Done: ...
    def drop(self) -> tuple[str, ...]: ...
    def named(self, keys: Sequence[str]) -> set[str]: ...
    def forget(self, keys: Iterable[str]) -> None: ...
    def books(self) -> Books: ...
    def lineage(self, watermark: int, count: int, named: Sequence[int]) -> Books: ...
    def counts(self) -> dict[str, int]: ...
    def hint(self) -> str: ...
    def wait_for_hint(self, after: str, kind: str | None, deadline_s: float, num_ready: int) -> Waited:
        """Block until `num_ready` groups came in after the hint `after`, or anything else happened."""
        ...

    def report(self, source: str, facts: str) -> None: ...
    def reports(self) -> dict[str, tuple[int, str]]: ...
    def of_run(self, run: str) -> "Store": ...
    def close(self) -> None: ...
