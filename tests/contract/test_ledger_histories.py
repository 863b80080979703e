"""Any history of workers, trainers, crashes and lost replies: both stores agree, and nothing is lost or doubled."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from buffer import (
    Behind,
    BufferConfig,
    Claim,
    CorruptPayload,
    Draw,
    Fenced,
    Group,
    Leased,
    Ledger,
    NotAdmitted,
    NotReady,
    ReplayBuffer,
    StalenessConfig,
    pack,
)
from buffer.lineage import ledger_of
from buffer.memory_store import MemoryStore
from buffer.partials import Partials
from buffer.payloads import Payloads
from buffer.payloads.memory import MemoryPayloads
from buffer.redis_store import RedisServer as Connection
from buffer.script_store import RedisStore
from buffer.versions import distance
from tests.support.groups import group_for, partials
from tests.support.redis_server import RedisServer, running_redis
from tests.support.twin_store import TwinStore

GROUP_BYTES = 1000
NUM_HISTORIES = 60
# No shrinking: it takes minutes here, and the steps of a failure are printed.
PHASES = (Phase.explicit, Phase.generate)


@dataclass
class Trainer:
    """What a trainer keeps in its own memory."""

    buffer: ReplayBuffer
    branch: int
    number: int
    step: int
    history: tuple[int, ...]
    since: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Checkpoint:
    branch: int
    number: int
    step: int
    ledger: Ledger | None
    history: tuple[int, ...]


class Histories(RuleBasedStateMachine):
    server: RedisServer
    names: Iterator[int]

    @initialize(
        limit=st.integers(0, 2),
        per_version=st.integers(1, 2),
        order=st.sampled_from(["oldest", "ordinal"]),
        on_stale=st.sampled_from(["resubmit", "discard", "mask"]),
        policy=st.sampled_from(["wait", "drop"]),
        tight=st.booleans(),
    )
    def start(self, limit: int, per_version: int, order: str, on_stale: str, policy: str, tight: bool) -> None:
        self.limit, self.per_version, self.masks = limit, per_version, on_stale == "mask"
        self.now, self.nonces = 1_000_000, itertools.count()
        self.config = BufferConfig(
            claim_s=60,
            max_attempts=2,
            max_group_bytes=GROUP_BYTES,
            max_bytes=GROUP_BYTES * per_version * (1 if tight else 100),
            max_dead_bytes=GROUP_BYTES,
        )
        self.staleness = StalenessConfig(policy=policy, on_stale=on_stale, order=order, max_stale=1, wait_deadline_s=30)
        run = f"history-{next(self.names)}"
        clock = self.clock
        self.store = TwinStore(
            MemoryStore(run, clock=clock), RedisStore(run, Connection(self.server.url, 5), clock), self.server
        )
        self.payloads = Payloads(MemoryPayloads(), self.config.payload)
        self.worker = self.attach()
        self.claims: list[Claim] = []
        self.parked: dict[int, Partials] = {}
        self.put_groups: list[tuple[Claim, Group]] = []
        self.has_lost_tail = False
        self.versions = [pack(0, 0)]
        self.forks: dict[int, tuple[int, int]] = {}
        self.checkpoints = [Checkpoint(0, 0, 0, None, ())]
        self.old: list[Trainer] = []
        self.saved = self.store.save()
        self.restart(0)

    def clock(self) -> int:
        return self.now

    def attach(self) -> ReplayBuffer:
        return ReplayBuffer(self.store, self.payloads, self.config, self.staleness)

    # Workers

    @rule(repeat=st.booleans(), behind=st.none() | st.integers(0, 4))
    def reserve(self, repeat: bool, behind: int | None) -> None:
        """behind: how far the positions that are offered begin behind those that were drawn; None: none are."""
        books = self.store.books()
        floor = max(books.next_position, books.next_ordinal)
        positions = () if behind is None else range(max(0, floor - behind), floor - behind + 3)
        offered = tuple(Draw(position, position % 5, f"offered at {floor}") for position in positions if position >= 0)
        self.store.repeat = repeat
        answer = self.worker.reserve(f"worker-{len(self.claims) % 3}", offered)
        if isinstance(answer, NotAdmitted) and answer.reason == "draw":
            assert offered
            assert offered[-1].position < answer.next_position == floor
        if isinstance(answer, Claim):
            assert answer.draw == books.draws.get(answer.ordinal, answer.draw), "an ordinal keeps its draw"
            if answer.ordinal not in books.draws and offered:
                assert answer.draw == next(draw for draw in offered if draw.position >= floor)
            assert answer.ordinal not in {c.ordinal for c in self.claims if self.holds(c)}
            if answer.parked is not None and not self.has_lost_tail:
                assert self.worker.fetch_partials(answer) == self.parked[answer.ordinal]
            self.claims.append(answer)

    @precondition(lambda self: self.claims)
    @rule(which=st.integers(0, 9), version=st.integers(0, 9), tokens=st.booleans())
    def renew(self, which: int, version: int, tokens: bool) -> None:
        claim = self.claims[which % len(self.claims)]
        try:
            oldest = self.versions[-1 - version % len(self.versions)] if tokens else None
            self.worker.renew(claim, oldest, 5 * version)
        except Fenced:
            assert not self.holds(claim)

    @precondition(lambda self: self.claims)
    @rule(which=st.integers(0, 9), version=st.integers(0, 3), repeat=st.booleans())
    def park(self, which: int, version: int, repeat: bool) -> None:
        claim = self.claims[which % len(self.claims)]
        self.store.repeat = repeat
        parked = partials(self.versions[-1 - version % len(self.versions)])
        try:
            assert self.worker.park(claim, parked, "arithmetic")
        except Fenced:
            assert not self.holds(claim)
        else:
            assert self.holds(claim)
            self.parked[claim.ordinal] = parked

    @precondition(lambda self: self.claims)
    @rule(which=st.integers(0, 9), one=st.integers(0, 3), other=st.integers(0, 3), repeat=st.booleans())
    def put(self, which: int, one: int, other: int, repeat: bool) -> None:
        claim = self.claims.pop(which % len(self.claims))
        held = self.holds(claim)
        picked = [self.versions[-1 - i % len(self.versions)] for i in (one, other)]
        self.store.repeat = repeat
        group = group_for(claim, *picked)
        try:
            status = self.worker.put(claim, group, pass_reward=0.5)
        except Fenced:
            # A repeat after "stale" finds the ordinal given away: dropped is what it was.
            assert not held or repeat
        else:
            assert held
            if status == "ready":
                self.put_groups.append((claim, group))

    @precondition(lambda self: self.put_groups)
    @rule(which=st.integers(0, 9))
    def put_again(self, which: int) -> None:
        try:
            assert self.worker.put(*self.put_groups[which % len(self.put_groups)]) in ("ready", "stale")
        except Fenced:
            return

    @precondition(lambda self: self.claims)
    @rule(which=st.integers(0, 9), how=st.sampled_from(["fail", "abandon", "filtered", "dies"]), repeat=st.booleans())
    def end_claim(self, which: int, how: str, repeat: bool) -> None:
        claim = self.claims.pop(which % len(self.claims))
        if how == "dies":
            return
        self.store.repeat = repeat
        try:
            if how == "fail":
                self.worker.fail(claim, "reward_failed", "boom", sampled=[which, 2], data_source="arithmetic")
            elif how == "abandon":
                self.worker.abandon(claim, sampled=[which], data_source="arithmetic")
            else:
                self.worker.put(claim, group_for(claim, self.versions[0]), filtered="zero_variance", pass_reward=0.5)
        except Fenced:
            assert not self.holds(claim)
        self.store.repeat = False

    # The trainer

    @rule(
        repeat=st.booleans(), back=st.sampled_from([None, None, None, "untouched", "corrupt_payload", "zero_variance"])
    )
    def lease_and_train(self, repeat: bool, back: str | None) -> None:
        self.store.repeat = repeat
        if back is None:
            self.train()
        else:
            leased = self.lease()
            if isinstance(leased, Leased):
                reason = None if back == "untouched" else back
                self.guarded(lambda t: t.buffer.give_back(t.branch, [leased.entries[0].ordinal], reason))

    @rule()
    def advance(self) -> None:
        self.guarded(
            lambda t: t.buffer.advance(t.branch, t.number, limit=self.limit, groups_per_version=self.per_version)
        )

    @rule(commits=st.booleans(), repeat=st.booleans())
    def checkpoint(self, commits: bool, repeat: bool) -> None:
        trainer = self.trainer

        def save(t: Trainer) -> None:
            masked = {"arithmetic": len(t.since)}
            whole = ledger_of(self.store.books(), t.buffer._lineage, t.number, t.since, masked, t.buffer._spent)
            ledger = t.buffer.ledger(t.branch, t.number, t.since, masked)
            assert ledger == whole, "the outline of the books lacks something"
            ledger = Ledger.from_json(json.loads(json.dumps(ledger.to_json())))
            assert {o for o in t.history if not ledger.names(o)} == set()
            self.checkpoints.append(Checkpoint(t.branch, t.number, t.step, ledger, t.history))
            if commits:
                self.store.repeat = repeat
                t.buffer.commit(t.branch, ledger)
                t.since = set()

        self.guarded(save)
        assert trainer.branch <= self.trainer.branch

    @rule(older=st.integers(0, 1))
    def restart(self, older: int) -> None:
        newest = sorted(self.checkpoints, key=lambda c: (c.branch, c.number, c.step))
        chosen = newest[max(-len(newest), -1 - older)]
        if hasattr(self, "trainer"):
            self.old.append(self.trainer)
        buffer = self.attach()
        seen = max([c.branch for c in self.checkpoints] + [t.branch for t in self.old])
        self.store.repeat = older == 1
        branch = buffer.recover(
            f"nonce-{next(self.nonces)}",
            chosen.ledger,
            number=chosen.number,
            limit=self.limit,
            groups_per_version=self.per_version,
            seen=seen,
        )
        assert branch > seen
        self.forks[branch] = (chosen.branch, chosen.number)
        self.trainer = Trainer(buffer, branch, chosen.number, chosen.step, chosen.history)
        self.versions.append(pack(branch, chosen.number))

    @precondition(lambda self: self.old)
    @rule(which=st.integers(0, 3), what=st.sampled_from(["lease", "commit", "advance"]))
    def old_trainer_wakes_up(self, which: int, what: str) -> None:
        old = self.old[-1 - which % len(self.old)]
        known = self.store.books().branch
        try:
            if what == "lease":
                old.buffer.lease(old.branch, old.number, old.step + 1, self.per_version)
            elif what == "commit":
                old.buffer.commit(old.branch, old.buffer.ledger(old.branch, old.number, old.since))
            else:
                old.buffer.advance(old.branch, old.number + 1, limit=9, groups_per_version=1)
        except Fenced:
            return
        except Behind:
            assert known < old.branch
            return
        # Only Redis without its tail takes an old trainer for the newest; the newest one then resumes on a new branch.
        assert known == old.branch

    # Everything else

    @rule(seconds=st.sampled_from([10, 61]))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds * 1000
        self.worker.sweep()

    @rule(what=st.sampled_from(["pause", "resume", "stop"]))
    def operate(self, what: str) -> None:
        getattr(self.worker, what)()

    @rule(what=st.sampled_from(["resubmit", "purge"]))
    def dead_letters(self, what: str) -> None:
        dead = [letter.ordinal for letter in self.worker.dead_letters()]
        assert set(getattr(self.worker, what)([*dead, 10_000])) <= set(dead)

    @rule(lose=st.booleans())
    def tail(self, lose: bool) -> None:
        if lose:
            self.has_lost_tail = True
            self.store.lose_tail(self.saved)
        else:
            self.saved = self.store.save()

    @invariant()
    def books_are_in_order(self) -> None:
        if not hasattr(self, "trainer"):
            return
        audit = self.worker.audit()
        assert audit.ok, audit.problems
        if audit.branch == self.trainer.branch:
            books = self.store.books()
            assert books.closed["consumed"] <= set(self.trainer.history), "consumed, but not trained by this lineage"
            assert audit.identity["consumed"] <= len(self.trainer.history)

    def teardown(self) -> None:
        """Whatever happened, the run goes on: one live worker and the trainer reach the next version."""
        if not hasattr(self, "trainer"):
            return
        self.worker.resume()
        goal = self.trainer.number + 2
        for _ in range(60):
            if self.trainer.number >= goal:
                break
            self.now += 61_000
            self.worker.sweep()
            self.play()
            refused = self.train()
            if refused is not None and refused.bytes_refused:
                self.checkpoint(True, False)
        else:
            raise AssertionError(f"nothing moves any more: {refused}, {self.store.books()}")
        self.books_are_in_order()
        self.store.close()

    def play(self) -> None:
        while isinstance(claim := self.worker.reserve("last"), Claim):
            if claim.branch != self.trainer.branch or claim.trained > self.trainer.number:
                self.worker.abandon(claim)  # Redis lost its tail: the trainer will find out and resume
                return
            assert claim.may_start_on(self.head()), "no server will ever be new enough"
            assert self.worker.put(claim, group_for(claim, self.head())) == "ready"

    def head(self) -> int:
        return pack(self.trainer.branch, self.trainer.number)

    def lease(self) -> Leased | NotReady | None:
        return self.guarded(
            lambda t: t.buffer.lease(t.branch, t.number, t.step + 1, self.per_version)  # one step a version
        )

    def train(self) -> NotReady | None:
        trainer, leased = self.trainer, self.lease()
        if not isinstance(leased, Leased):
            return leased
        ordinals = [entry.ordinal for entry in leased.entries]
        assert ordinals == sorted(set(ordinals))
        assert len(ordinals) == self.per_version
        assert not set(ordinals) & set(trainer.history), "trained twice on one lineage"
        for entry in leased.entries:
            try:
                group = trainer.buffer.fetch(entry)
            except CorruptPayload:
                assert self.has_lost_tail
                self.guarded(lambda t, o=entry.ordinal: t.buffer.give_back(t.branch, [o], "corrupt_payload"))
                return None
            spans = [s.version for t in group.trajectories for r in t.rows for s in r.spans]
            lag = max(distance(self.forks, version, self.head()) for version in spans)
            # A branch that Redis has forgotten is taken to share the root only: its groups count as older, not newer.
            assert entry.lag == lag or (self.has_lost_tail and entry.lag > lag)
            assert lag <= self.limit or self.masks
        trainer.number, trainer.step = trainer.number + 1, trainer.step + 1
        trainer.history += tuple(ordinals)
        trainer.since |= set(ordinals)
        self.versions.append(self.head())
        return None

    def guarded(self, call):
        """A trainer's call. A trainer that is behind or fenced resumes from its checkpoint."""
        try:
            return call(self.trainer)
        except (Behind, Fenced):
            assert self.store.books().branch != self.trainer.branch or self.store.books().trained > self.trainer.number
            self.restart(0)
            return None

    def holds(self, claim: Claim) -> bool:
        books = self.store.memory.books()
        return books.claims.get(claim.token) == claim.ordinal


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


def test_any_history_leaves_both_stores_equal_and_in_order(server: RedisServer) -> None:
    machine = type("Machine", (Histories,), {"server": server, "names": itertools.count()})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=NUM_HISTORIES,
            stateful_step_count=40,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=PHASES,
        ),
    )
