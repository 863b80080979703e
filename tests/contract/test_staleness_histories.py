"""Any interleaving of reserve, put, advance, lease, commit, crash, sweep, park and clock jumps keeps the limit.

No group past the limit is ever leased, a resume admits no burst, and from wherever a history ends the next version is
trained within a few rounds of nothing failing: nothing waits for ever. `test_ledger_histories` holds the two stores
against each other; this file holds the policy against the protocol, over wider settings and on the memory store alone.
"""

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from buffer import Leased, NotReady, StalenessConfig
from tests.support.staleness_run import CLAIM_S, Settings, StalenessRun

MOST_ROUNDS = 3
"""Rounds of nothing failing after which the next version is trained, wherever a history ended."""
# No shrinking: it takes minutes here, and the steps of a failure are printed.
PHASES = (Phase.explicit, Phase.generate)
FEW = {
    "phases": PHASES,
    "derandomize": True,
    "deadline": None,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}

shapes = st.builds(Settings, limit=st.integers(0, 3), per_step=st.integers(1, 3), steps=st.integers(1, 2))
which = st.integers(0, 20)
backs = st.integers(0, 5)
"""How many versions back a token was sampled, in the order in which they were made, on whatever branch."""


class Histories(RuleBasedStateMachine):
    met: Counter[str]
    policy: str
    order: str

    @initialize(
        shape=shapes,
        on_stale=st.sampled_from(["resubmit", "discard", "mask"]),
        max_stale=st.integers(0, 3),
        wait_deadline_s=st.sampled_from([30.0, 1e7]),
    )
    def start(self, shape: Settings, on_stale: str, max_stale: int, wait_deadline_s: float) -> None:
        config = StalenessConfig(
            policy=self.policy,
            order=self.order,
            on_stale=on_stale,
            max_stale=max_stale,
            wait_deadline_s=wait_deadline_s,
            cancel_doomed=on_stale != "mask",  # whatever is past the limit is trained on with its rewards
        )
        self.run = StalenessRun(shape, config, met=self.met)
        self.leased: Leased | None = None

    # Workers

    @rule(backs=st.lists(backs, min_size=1, max_size=5))
    def start_groups(self, backs: list[int]) -> None:
        """Workers take prompts and sample their first tokens; some are slow to begin."""
        for back in backs:
            if self.run.reserve() is not None and back:
                self.run.sample(-1, self.version(back - 1))

    @precondition(lambda self: self.run.held)
    @rule(finished=st.lists(st.tuples(which, backs), min_size=1, max_size=4))
    def finish_groups(self, finished: list[tuple[int, int]]) -> None:
        for which, back in finished:
            if self.run.held:
                self.run.put(self.one(which), self.version(back), self.version(back + 1))

    @rule(backs=st.lists(backs, min_size=1, max_size=6))
    def play(self, backs: list[int]) -> None:
        """Quick workers: prompt in, group out."""
        for back in backs:
            if self.run.reserve() is not None:
                self.run.put(self.run.held[-1], self.version(back))

    @precondition(lambda self: self.run.held)
    @rule(which=which, back=backs)
    def sample(self, which: int, back: int) -> None:
        self.run.sample(which, self.version(back))

    @precondition(lambda self: any(held.versions for held in self.run.held))
    @rule(which=which)
    def park(self, which: int) -> None:
        started = [held for held in self.run.held if held.versions]
        self.run.park(started[which % len(started)])

    @precondition(lambda self: self.run.held)
    @rule(which=which, how=st.sampled_from(["dies", "fails", "abandons"]))
    def end(self, which: int, how: str) -> None:
        held = self.one(which)
        if how == "dies":
            held.lives = False
        else:
            self.run.give_up(held, fails=how == "fails")

    # The trainer

    @rule(advances=st.booleans(), times=st.integers(1, 3))
    def train(self, advances: bool, times: int) -> None:
        for _ in range(times):
            if self.leased is None:
                self.lease()
            if self.leased is not None:
                self.use()
                if advances:
                    self.run.advance()

    @rule(starts=st.lists(st.integers(1, 2), min_size=1, max_size=2), times=st.integers(1, 3))
    def go_on_beside_slow_ones(self, starts: list[int], times: int) -> None:
        """Some groups are begun and stay; quick workers and the trainer go on beside them."""
        self.start_groups(starts)
        for _ in range(times):
            self.play([0] * self.run.settings.window)
            self.train(advances=True, times=self.run.settings.steps)

    @precondition(lambda self: self.leased is None)
    @rule()
    def lease(self) -> None:
        answer = self.run.lease()
        self.leased = answer if isinstance(answer, Leased) else None

    @precondition(lambda self: self.leased is not None)
    @rule()
    def give_back(self) -> None:
        assert self.leased is not None
        entries, self.leased = self.leased.entries, None
        self.run.trainer.give_back(self.run.branch, [entry.ordinal for entry in entries])

    @precondition(lambda self: self.leased is None)
    @rule(commits=st.booleans())
    def checkpoint(self, commits: bool) -> None:
        self.run.checkpoint(commits=commits)

    @rule(back=st.integers(0, 9), shape=st.none() | shapes, probes=st.booleans())
    def trainer_dies(self, back: int, shape: Settings | None, probes: bool) -> None:
        """Another one resumes from any checkpoint, with its own settings or the same."""
        self.leased = None
        self.run.resume(-1 - back, shape)
        if probes:
            # Right after a resume as many groups start as the window holds besides what is at work: no burst (B025).
            granted, expected = self.run.admitted_now()
            assert granted == expected
            books = self.run.books
            assert granted <= self.run.settings.window
            assert len(books.open) >= self.run.settings.window or books.paused

    # Everything else

    @rule(seconds=st.sampled_from([10, CLAIM_S + 1, 86_400, -600]))
    def time_passes(self, seconds: int) -> None:
        self.run.passes(seconds)

    @rule(what=st.sampled_from(["pause", "resume"]))
    def operate(self, what: str) -> None:
        getattr(self.run.worker, what)()

    def teardown(self) -> None:
        if not hasattr(self, "run"):
            return
        assert self.run.worker.audit().ok, self.run.worker.audit().problems
        if self.leased is not None:
            self.use()
        assert self.run.next_version() <= MOST_ROUNDS
        # A second round where a smaller B left ready groups over: they turn out stale at the first lease.
        assert self.run.next_version() <= 2

    def use(self) -> None:
        assert self.leased is not None
        entries, self.leased = self.leased.entries, None
        self.run.train(entries)

    def version(self, back: int) -> int:
        versions = self.run.versions
        return versions[-1 - back % len(versions)]

    def one(self, which: int):
        return self.run.held[which % len(self.run.held)]


@pytest.mark.parametrize("order", ["oldest", "ordinal"])
@pytest.mark.parametrize("policy", ["wait", "drop"])
def test_no_history_leases_past_the_limit_or_waits_for_ever(policy: str, order: str) -> None:
    met: Counter[str] = Counter()
    machine = type("Machine", (Histories,), {"met": met, "policy": policy, "order": order})
    run_state_machine_as_test(machine, settings=settings(max_examples=30, stateful_step_count=40, **FEW))
    expected = {"stale at a lease", "parked", "put: ready", "put: stale", "put: fenced"}
    if (policy, order) == ("wait", "oldest"):
        expected.add("held lease")
    if policy == "drop":
        expected.add("doomed")
    assert {what for what, times in met.items() if times} >= expected, "a history that met nothing shows nothing"


@settings(max_examples=25, **FEW)
@given(shape=shapes, data=st.data())
def test_in_order_and_without_interruption_nothing_is_born_stale(shape: Settings, data: st.DataObject) -> None:
    """Servers anywhere between `start_from` and head, workers of any speed: each group is fresh when it is due."""
    run = StalenessRun(shape, StalenessConfig(policy="drop", order="ordinal"))
    for _ in range(data.draw(st.integers(1, 25), label="acts")):
        while (claim := run.reserve()) is not None:
            held = run.held[-1]
            # The oldest server on which it may start.
            held.versions = (next(v for v in run.versions[1:] if claim.may_start_on(v)),)
        for held in data.draw(
            st.lists(st.sampled_from(run.held), unique_by=id, max_size=4) if run.held else st.just([])
        ):
            assert run.put(held) == "ready"
        answer = run.lease()
        assert answer.left == ()
        if isinstance(answer, Leased):
            run.train(answer.entries)
            run.advance()


@pytest.mark.parametrize("policy", ["wait", "drop"])
@settings(max_examples=15, **FEW)
@given(shape=shapes, order=st.sampled_from(["oldest", "ordinal"]), data=st.data())
def test_with_instant_workers_every_version_is_trained_at_once(
    policy: str, shape: Settings, order: str, data: st.DataObject
) -> None:
    run = StalenessRun(shape, StalenessConfig(policy=policy, order=order))
    for _ in range(6):
        assert run.next_version() == 1
    assert run.worker.audit().by_reason.get("stale", 0) == 0
    answer = run.lease()
    assert isinstance(answer, NotReady | Leased)
