"""A run of the buffer in memory as a world of its own: a tree of versions, workers that live or die, a trainer.

Every act is one call that a worker, a trainer or an operator may make, and checks what that caller may rely on.
`next_version` is the fault-free continuation: whatever happened before, it trains one version more.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from buffer import BufferConfig, Claim, Entry, Fenced, Leased, Ledger, NotReady, ReplayBuffer, StalenessConfig, pack
from buffer.books import Books
from buffer.memory_store import MemoryStore
from buffer.partials import UNFINISHED, PartialEpisode, Partials
from buffer.payloads import Payloads
from buffer.payloads.memory import MemoryPayloads
from buffer.trajectory import Trajectory
from buffer.versions import distance
from tests.support.groups import group_for, row

CLAIM_S, MOST_TURNS = 60, 4


@dataclass
class Held:
    """A claim in the hands of a worker."""

    claim: Claim
    lives: bool = True
    versions: tuple[int, ...] = ()
    """Of the tokens that the group has already."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint."""

    branch: int
    number: int
    step: int
    ledger: Ledger | None
    trained: frozenset[int]


@dataclass
class Settings:
    """limit, groups a step and steps a version; they may change when a trainer resumes."""

    limit: int
    per_step: int
    steps: int

    @property
    def per_version(self) -> int:
        return self.per_step * self.steps

    @property
    def window(self) -> int:
        return (self.limit + 1) * self.per_version


@dataclass
class StalenessRun:
    """The world, and the acts in it."""

    settings: Settings
    config: StalenessConfig
    now_ms: int = 1_000_000_000
    held: list[Held] = field(default_factory=list)
    forks: dict[int, tuple[int, int]] = field(default_factory=dict)
    trained: set[int] = field(default_factory=set)
    since: set[int] = field(default_factory=set)
    number: int = 0
    step: int = 0
    branch: int = 0
    doomed: set[str] = field(default_factory=set)
    """Groups whose workers were told to stop, on this branch."""
    met: Counter[str] = field(default_factory=Counter)
    """What happened, by name: a history that met nothing shows nothing."""

    def __post_init__(self) -> None:
        config = BufferConfig(claim_s=CLAIM_S, renew_every_s=15, max_attempts=3, max_group_bytes=4096)
        self.store = MemoryStore("staleness", clock=lambda: self.now_ms)
        payloads = Payloads(MemoryPayloads(), config.payload)
        self.attach = lambda: ReplayBuffer(self.store, payloads, config, self.config)
        self.worker, self.nonces = self.attach(), itertools.count()
        self.saved = [Saved(0, 0, 0, None, frozenset())]
        self.versions = [pack(0, 0)]
        self.resume(0)

    @property
    def books(self) -> Books:
        """The books themselves, not a copy: to look at, under one thread."""
        with self.store._transition() as books:
            return books

    @property
    def head(self) -> int:
        return pack(self.branch, self.number)

    # Workers

    def reserve(self) -> Claim | None:
        answer = self.worker.reserve("w")
        if not isinstance(answer, Claim):
            return None
        assert answer.start_from <= self.number, "no server is new enough, and none will be before this is trained"
        assert answer.may_start_on(self.head)
        books = self.books
        assert books.ahead(answer.ordinal) + len(books.taken) < books.window
        self.held.append(Held(answer, versions=self._parked_versions(answer)))
        return answer

    def _parked_versions(self, claim: Claim) -> tuple[int, ...]:
        parked = self.worker.fetch_partials(claim)
        if parked is None:
            return ()
        versions = tuple(s.version for e in parked.episodes for r in e.trajectory.rows for s in r.spans)
        books = self.books
        lag = max(distance(self.forks, pack(self.branch, books.trained), version) for version in versions)
        assert self.masks or lag <= books.limit, "continued, it would be stale for ever"
        self.met["parked"] += 1
        return versions

    def sample(self, which: int, version: int) -> None:
        """A worker samples tokens and renews."""
        held = self.held[which % len(self.held)]
        if len(held.versions) < MOST_TURNS:
            held.versions = (*held.versions, version)
        try:
            answer = self.worker.renew(held.claim, max(held.versions, key=lambda v: self.lag([v])), len(held.versions))
        except Fenced:
            self.held.remove(held)
            return
        if answer.reason == "doomed":
            self.met["doomed"] += 1
            if self.config.order == "oldest":  # in order of ordinals it is a forecast: those ahead may be discarded
                self.doomed.add(held.claim.gid)

    def put(self, held: Held, *versions: int) -> str:
        self.held.remove(held)
        try:
            status = self.worker.put(held.claim, group_for(held.claim, *(*held.versions, *versions)))
        except Fenced:
            status = "fenced"
        self.met[f"put: {status}"] += 1
        return status

    def park(self, held: Held) -> None:
        """Park what the worker has, and give the ordinal up: a graceful stop."""
        self.held.remove(held)
        partial = Trajectory(rows=(row(held.versions),), reward=None, reward_error=UNFINISHED, finish_reason="abort")
        try:
            self.worker.park(held.claim, Partials((PartialEpisode(0, partial, done=False),)))
        except Fenced:
            return
        self.worker.abandon(held.claim)

    def give_up(self, held: Held, *, fails: bool) -> None:
        self.held.remove(held)
        try:
            if fails:
                self.worker.fail(held.claim, "reward_failed", "boom")
            else:
                self.worker.abandon(held.claim)
        except Fenced:
            return

    # The trainer

    def lease(self) -> Leased | NotReady:
        books = self.books
        is_again = self.step + 1 in books.leased.values()
        opened, ready = set(books.open), dict(books.ready)
        answer = self.trainer.lease(self.branch, self.number, self.step + 1, self.settings.per_step)
        for left in answer.left:
            assert left.lag > self.settings.limit
            assert not self.masks
        if isinstance(answer, Leased):
            assert len(answer.entries) == self.settings.per_step
            for entry in answer.entries:
                self.check(entry)
            left = {one.ordinal for one in answer.left}
            if not is_again:
                self._check_order(opened, ready, [entry.ordinal for entry in answer.entries], left)
        self.met["stale at a lease"] += len(answer.left)
        self.met["held lease"] += isinstance(answer, NotReady) and bool(answer.waiting_for)
        return answer

    def _check_order(self, opened: set[int], ready: dict[int, int], taken: list[int], left: set[int]) -> None:
        """What was taken comes first in the configured order; nothing is left out but what was past the limit."""
        if self.config.order == "ordinal":
            discarded = left - self.books.open
            assert taken == sorted(opened - discarded)[: len(taken)]
        else:
            fresh = {ordinal: at for ordinal, at in ready.items() if ordinal not in left}
            assert taken == sorted(sorted(fresh, key=lambda o: (fresh[o], o))[: len(taken)])

    def check(self, entry: Entry) -> None:
        """No group with lag > limit is ever leased, by the payload's own versions and the tree."""
        assert entry.ordinal not in self.trained
        assert entry.gid not in self.doomed, "its worker was told that nobody could train on it"
        group = self.trainer.fetch(entry)
        lag = self.lag([s.version for t in group.trajectories for r in t.rows for s in r.spans])
        assert entry.lag == lag >= 0
        assert lag <= self.settings.limit or self.masks

    def train(self, entries: Sequence[Entry]) -> None:
        """Train a leased batch; the last step of a version makes the next one. The ledger may be told later."""
        ordinals = {entry.ordinal for entry in entries}
        self.trained |= ordinals
        self.since |= ordinals
        self.step += 1
        if self.step % self.settings.steps == 0:
            self.number += 1
            self.versions.append(self.head)

    def advance(self) -> None:
        settings = self.settings
        self.trainer.advance(self.branch, self.number, limit=settings.limit, groups_per_version=settings.per_version)

    def checkpoint(self, *, commits: bool) -> None:
        ledger = self.trainer.ledger(self.branch, self.number, self.since)
        self.saved.append(Saved(self.branch, self.number, self.step, ledger, frozenset(self.trained)))
        if commits:
            self.trainer.commit(self.branch, ledger)
            self.since = set()

    def resume(self, which: int, settings: Settings | None = None) -> None:
        """The trainer dies; another one resumes from any checkpoint."""
        chosen = self.saved[which % len(self.saved)]
        self.settings = settings or self.settings
        self.trainer = self.attach()
        self.branch = self.trainer.recover(
            f"nonce-{next(self.nonces)}",
            chosen.ledger,
            number=chosen.number,
            limit=self.settings.limit,
            groups_per_version=self.settings.per_version,
            seen=max((saved.branch for saved in self.saved), default=0),
        )
        self.forks[self.branch] = (chosen.branch, chosen.number)
        self.number = chosen.number
        self.step = chosen.step
        self.trained, self.since, self.doomed = set(chosen.trained), set(), set()
        self.versions.append(self.head)

    def admitted_now(self) -> tuple[int, int]:
        """After a resume: how many reserves are granted, and how many should be, as nothing is taken yet."""
        books = self.books
        waiting, opened, expected = sorted(books.waiting), set(books.open), 0
        while not books.paused:
            ordinal = waiting.pop(0) if waiting else max([books.next_ordinal - 1, *opened]) + 1
            if sum(other < ordinal for other in opened) >= self.settings.window:
                break
            opened.add(ordinal)
            expected += 1
        granted = 0
        while self.reserve() is not None:
            granted += 1
        return granted, expected

    # Everything else

    def passes(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)
        self.worker.sweep()

    def lag(self, versions: Sequence[int]) -> int:
        return max((distance(self.forks, self.head, version) for version in versions), default=0)

    @property
    def masks(self) -> bool:
        return self.config.on_stale == "mask"

    def next_version(self) -> int:
        """Nothing fails any more: living workers finish, dead ones are noticed, the trainer trains. Rounds it took."""
        self.worker.resume()
        goal = self.number + 1
        for rounds in range(1, 7):
            for held in [held for held in self.held if held.lives]:
                self.put(held, self.head)
            self.held.clear()
            if self.books.in_flight:
                # Twice: after a clock that went back, the first look only moves the deadlines.
                self.passes(CLAIM_S + 1)
                self.passes(CLAIM_S + 1)
            self.advance()
            while (claim := self.reserve()) is not None:
                held = next(held for held in self.held if held.claim == claim)
                assert self.put(held, self.head) == "ready"
            while self.number < goal and isinstance(leased := self.lease(), Leased):
                self.train(leased.entries)
            if self.number == goal:
                self.advance()
                return rounds
        raise AssertionError(f"nothing moves any more: {leased}, {self.books}")
