"""on_stale mask, from buffer to loss: exactly the tokens past the limit leave it, along any tree of versions."""

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncrl.algorithms.advantages import group_relative
from asyncrl.trainer.batch import build
from asyncrl.trainer.joined import Joined
from asyncrl.trainer.lineage import Lineage
from buffer import BufferConfig, Claim, Group, Leased, Ledger, ReplayBuffer, StalenessConfig, Trajectory, pack
from buffer.versions import distance
from tests.support.groups import row

FEW = {"derandomize": True, "deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


class Tree:
    """Trainers that each resume from some checkpoint of some branch, so that versions lie on many branches."""

    def __init__(self, limit: int) -> None:
        config = BufferConfig(max_group_bytes=100_000)
        self.buffer = ReplayBuffer.in_memory("mask", config, StalenessConfig(policy="drop", on_stale="mask"))
        self.limit, self.forks, self.versions = limit, {}, [pack(0, 0)]
        self.saved: list[tuple[int, int, Ledger | None]] = [(0, 0, None)]
        self.branch = self.number = 0

    def resume(self, which: int, steps: int) -> None:
        """From any checkpoint, then some versions further, each kept in one."""
        parent, number, ledger = self.saved[which % len(self.saved)]
        self.branch = self.buffer.recover(
            f"nonce-{len(self.forks)}", ledger, number=number, limit=self.limit, groups_per_version=4
        )
        self.forks[self.branch] = (parent, number)
        for self.number in range(number, number + steps + 1):
            self.buffer.advance(self.branch, self.number, limit=self.limit, groups_per_version=4)
            self.versions.append(pack(self.branch, self.number))
            ledger = self.buffer.ledger(self.branch, self.number, ())
            self.saved.append((self.branch, self.number, ledger))


trees = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), min_size=1, max_size=4)
members = st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=3), min_size=2, max_size=4)


@settings(max_examples=60, **FEW)  # type: ignore[arg-type]  # of several kinds
@given(limit=st.integers(0, 3), resumes=trees, groups=st.lists(members, min_size=1, max_size=3))
def test_exactly_the_tokens_past_the_limit_leave_the_loss(
    limit: int, resumes: list[tuple[int, int]], groups: list[list[list[int]]]
) -> None:
    tree = Tree(limit)
    for which, steps in resumes:
        tree.resume(which, steps)
    for group in groups:
        put(tree, [[tree.versions[i % len(tree.versions)] for i in picked] for picked in group])
    leased = tree.buffer.lease(tree.branch, tree.number, 1, len(groups))
    assert isinstance(leased, Leased)
    fetched = [tree.buffer.fetch(entry) for entry in leased.entries]
    lineage = Lineage(tree.branch, tree.number, 0, forks=tree.forks)
    batch = build(
        fetched,
        [[group.ordinal for group in fetched]],
        filter_zero_variance=False,
        lag_of=lineage.lag_of,
        max_lag=limit,
    )
    lags = [
        distance(tree.forks, pack(tree.branch, tree.number), span.version)
        for group in fetched
        for trajectory in group.trajectories
        for one in trajectory.rows
        for span in one.spans
        for _ in range(span.num_tokens)
    ]
    kept = [lag for lag in lags if lag <= limit]
    assert batch.lags_N.tolist() == kept
    assert sum(batch.masked.values()) == len(lags) - len(kept)
    assert {reason for reason, _ in batch.masked} <= {"past_limit"}
    for entry, group in zip(leased.entries, fetched, strict=True):
        spans = [s.version for t in group.trajectories for r in t.rows for s in r.spans]
        assert entry.lag == max(distance(tree.forks, pack(tree.branch, tree.number), v) for v in spans)


def put(tree: Tree, versions: list[list[int]]) -> None:
    claim = tree.buffer.reserve("w")
    assert isinstance(claim, Claim)
    trajectories = tuple(
        Trajectory(rows=(row(picked),), reward=float(i), reward_error=None) for i, picked in enumerate(versions)
    )
    assert tree.buffer.put(claim, Group(claim.ordinal, claim.attempt, "toy", trajectories)) == "ready"


def test_a_masked_answer_keeps_its_reward_in_the_baseline_of_the_others() -> None:
    tree = Tree(limit=1)
    tree.resume(0, 3)
    put(tree, [[pack(1, 3)], [pack(1, 0)], [pack(1, 3), pack(1, 1)]])
    leased = tree.buffer.lease(1, 3, 1, 1)
    assert isinstance(leased, Leased)
    (group,) = [tree.buffer.fetch(entry) for entry in leased.entries]
    batch = build(
        [group],
        [[group.ordinal]],
        filter_zero_variance=False,
        lag_of=Lineage(1, 3, 0, forks={1: (0, 0)}).lag_of,
        max_lag=1,
    )
    # Rewards 0, 1 and 2: the second one is masked whole, and the mean is still 1. Of the third one half stays.
    joined, facts = Joined.of(batch), batch.trajectories
    rewards, groups = torch.from_numpy(facts.rewards_J), torch.from_numpy(facts.group_J)
    advantages_JS = group_relative(rewards, joined.sampled_JS, groups, divide_by_std=False)
    np.testing.assert_allclose(joined.pick(advantages_JS), [-1.0] * 3 + [1.0] * 3, rtol=1e-6)
    assert batch.masked == {("past_limit", "toy"): 6}
    assert batch.lags_N.tolist() == [0] * 6
