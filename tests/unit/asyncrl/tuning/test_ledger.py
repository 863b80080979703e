"""The simulated buffer beside the real one: through one history both start, lease and drop the same groups."""

import random
from dataclasses import dataclass, field

import pytest

from asyncrl.tuning.ledger import Ledger, SimGroup
from asyncrl.tuning.profile import Setting, Workload
from buffer import BufferConfig, Claim, Leased, ReplayBuffer, StalenessConfig, pack
from tests.support.groups import group_for

ACTS = ("start", "start", "tell", "put", "put", "lease", "clock")


@dataclass
class Twins:
    """A simulated ledger and a buffer in memory; every act happens to both, and what they answer is compared."""

    setting: Setting
    workload: Workload
    now_ms: int = 1_000_000
    step: int = 0
    held: list[tuple[SimGroup, Claim, int]] = field(default_factory=list)
    num_left: int = 0
    num_held: int = 0

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.setting, self.workload)
        self.buffer = ReplayBuffer.in_memory(
            "twins",
            BufferConfig(claim_s=1e6, max_group_bytes=4096),
            StalenessConfig(
                policy=self.setting.policy,
                on_stale=self.workload.on_stale,
                max_stale=self.workload.max_stale,
                order=self.workload.order,
                wait_deadline_s=self.workload.wait_deadline_s,
            ),
            clock=lambda: self.now_ms,
        )
        self.branch = self.buffer.recover(
            "nonce", None, number=0, limit=self.setting.limit, groups_per_version=self.ledger.per_version
        )

    def start(self, rng: random.Random) -> None:
        claim, ordinal = self.buffer.reserve("worker"), self.ledger.admits()
        if not isinstance(claim, Claim):
            assert ordinal is None
            return
        assert claim.ordinal == ordinal
        group = self.ledger.reserve(ordinal, [])
        assert group.start_from == claim.start_from
        version = rng.randint(max(0, group.start_from - rng.randint(0, 1)), self.ledger.trained)
        self.held.append((group, claim, version))

    def tell(self, rng: random.Random) -> None:
        """A worker has a first answer of a group."""
        if self.held:
            group, claim, version = rng.choice(self.held)
            group.told = group.oldest = version
            self.buffer.renew(claim, pack(self.branch, version), 3)

    def put(self, rng: random.Random) -> None:
        if self.held:
            group, claim, version = self.held.pop(rng.randrange(len(self.held)))
            group.oldest, num_left = version, len(self.ledger.left)
            outcome = self.buffer.put(claim, group_for(claim, pack(self.branch, version)))
            self.ledger.put(group)
            assert (outcome == "stale") == (len(self.ledger.left) > num_left)
            self.num_left += outcome == "stale"

    def lease(self, rng: random.Random) -> None:
        """A step, and a version where it is the last of one."""
        answer = self.buffer.lease(self.branch, self.ledger.trained, self.step + 1, self.workload.groups_per_step)
        before = len(self.ledger.left)
        groups = self.ledger.lease(self.now_ms / 1000)
        left = [group.ordinal for group in self.ledger.left[before:]]
        assert sorted(left) == sorted(one.ordinal for one in answer.left)
        self.num_left += len(left)
        if not isinstance(answer, Leased):
            assert groups is None
            self.num_held += bool(answer.waiting_for)
            return
        assert groups is not None
        assert sorted(group.ordinal for group in groups) == [entry.ordinal for entry in answer.entries]
        self.step += 1
        if self.step % self.setting.steps_per_version == 0:
            number = self.ledger.trained + 1
            self.ledger.advance(number)
            self.buffer.advance(
                self.branch, number, limit=self.setting.limit, groups_per_version=self.ledger.per_version
            )

    def clock(self, rng: random.Random) -> None:
        self.now_ms += rng.randint(0, 20_000)


@pytest.mark.parametrize("on_stale", ["resubmit", "discard", "mask"])
@pytest.mark.parametrize("policy", ["wait", "drop"])
@pytest.mark.parametrize("order", ["oldest", "ordinal"])
def test_both_start_lease_and_drop_the_same_groups(on_stale: str, policy: str, order: str) -> None:
    trained = left = held = 0
    for seed in range(12):
        rng = random.Random(f"{seed} {on_stale} {policy} {order}")
        twins = Twins(
            Setting(limit=rng.randint(0, 3), policy=policy, steps_per_version=rng.randint(1, 2)),
            Workload(
                groups_per_step=rng.randint(1, 3),
                group_size=2,
                on_stale=on_stale,
                max_stale=rng.randint(0, 2),
                order=order,
                wait_deadline_s=rng.choice((30.0, 1e6)),
            ),
        )
        for _ in range(150):
            getattr(twins, rng.choice(ACTS))(rng)
        trained, left, held = trained + twins.ledger.trained, left + twins.num_left, held + twins.num_held
    assert trained > 30, "a history in which nothing is trained shows nothing"
    assert (left > 0) == (on_stale != "mask")
    assert (held > 0) == (policy == "wait" and order == "oldest")
