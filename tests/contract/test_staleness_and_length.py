"""Policies and length, on the real buffer with a clock: answers take as long as they are long.

Under `drop` the long ones are lost and the report knows by how much; under `wait` none is.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from asyncrl.report.length_bias import ALL, LengthBias, measure, of_tokens
from asyncrl.report.lines import Line
from asyncrl.trainer import group_metrics
from buffer import (
    BufferConfig,
    Claim,
    Group,
    Leased,
    NotReady,
    ReplayBuffer,
    Row,
    Span,
    StalenessConfig,
    Trajectory,
    pack,
)

MEDIAN, GROUP, LIMIT, PER_VERSION, VERSIONS = 20, 8, 1, 4, 60
MS_PER_TOKEN = 50


def group_of(claim: Claim, lengths: Sequence[int], version: int) -> Group:
    rows = (
        Row(
            token_ids=np.arange(1 + length, dtype=np.uint32),
            mask=np.arange(1 + length) > 0,
            logprobs=np.where(np.arange(1 + length) > 0, -0.5, 0.0).astype(np.float32),
            spans=(Span(version, 1, length),),
            num_prompt_tokens=1,
        )
        for length in lengths
    )
    members = tuple(Trajectory(rows=(row,), reward=1.0, reward_error=None) for row in rows)
    return Group(claim.ordinal, claim.attempt, "math", members)


@dataclass
class World:
    """Workers that sample at a fixed rate, and a trainer that takes no time: lengths alone decide who is late."""

    policy: str
    now_ms: int = 1_000_000
    flying: list[tuple[int, int, Claim, tuple[int, ...], int]] = field(default_factory=list)
    ended: list[tuple[int, ...]] = field(default_factory=list)
    trained: list[tuple[int, ...]] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    waited_for: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(17)
        staleness = StalenessConfig(policy=self.policy, max_stale=1000, wait_deadline_s=1e6)  # type: ignore[arg-type]
        config = BufferConfig(claim_s=1e6)
        self.buffer = ReplayBuffer.in_memory("length", config, staleness, clock=lambda: self.now_ms)
        self.branch = self.buffer.recover("n", None, number=0, limit=LIMIT, groups_per_version=PER_VERSION)
        self.number = 0

    def run(self) -> dict[str, LengthBias]:
        every: set[int] = set()
        while self.number < VERSIONS:
            self.start_what_may_start()
            answer = self.buffer.lease(self.branch, self.number, self.number + 1, PER_VERSION)
            if isinstance(answer, Leased):
                self.train(answer)
                every |= {entry.ordinal for entry in answer.entries}
                continue
            self.note(answer)
            self.finish_next()
        self.buffer.commit(self.branch, self.buffer.ledger(self.branch, self.number, every))
        return measure(self.lines, None, self.buffer.audit().tokens.to_json()["fates"])

    def start_what_may_start(self) -> None:
        while isinstance(claim := self.buffer.reserve("w"), Claim):
            lengths = tuple(np.ceil(MEDIAN * self.rng.lognormal(0.0, 1.0, GROUP)).astype(int).tolist())
            self.buffer.renew(claim, pack(self.branch, self.number), 1)
            ends_ms = self.now_ms + max(lengths) * MS_PER_TOKEN
            heapq.heappush(self.flying, (ends_ms, claim.ordinal, claim, lengths, self.number))

    def finish_next(self) -> None:
        self.now_ms, _, claim, lengths, number = heapq.heappop(self.flying)
        status = self.buffer.put(claim, group_of(claim, lengths, pack(self.branch, number)))
        if status == "stale":
            self.ended.append(lengths)

    def train(self, leased: Leased) -> None:
        self.trained += [entry.sampled for entry in leased.entries]
        self.ended += [entry.sampled for entry in leased.entries]
        self.ended += [left.sampled for left in leased.left]
        assert all(entry.lag <= LIMIT for entry in leased.entries)
        self.number += 1
        mean = float(np.mean([length for entry in leased.entries for length in entry.sampled]))
        values = group_metrics.consumed(leased.entries) | group_metrics.left(leased.left, leased.entries)
        values |= {"response_length/mean": mean, "response_length/math/mean": mean}
        self.lines.append(Line(self.number, self.branch, self.now_ms / 1000, values))
        self.buffer.advance(self.branch, self.number, limit=LIMIT, groups_per_version=PER_VERSION)

    def note(self, answer: NotReady) -> None:
        assert answer.left == ()
        self.waited_for |= {group.ordinal for group in answer.waiting_for}


def mean_of(groups: list[tuple[int, ...]]) -> float:
    return float(np.mean([length for lengths in groups for length in lengths]))


def test_drop_loses_long_answers_and_the_report_says_how_many_percent() -> None:
    world = World("drop")
    bias = world.run()
    shorter = 1 - mean_of(world.trained) / mean_of(world.ended)
    assert shorter > 0.1, "this world selects"
    for source in (ALL, "math"):
        started = bias[source].started()
        assert started is not None
        assert bias[source].trained.per_answer() == pytest.approx(mean_of(world.trained))
        assert started.tokens == pytest.approx(mean_of(world.ended))
        assert f"Trained answers are {shorter:.0%} shorter than started ones" in bias[source].verdict()
    audit = world.buffer.audit()
    assert audit.ok, audit.problems
    assert audit.tokens.fates["stale/resubmitted", "math"].trajectories == GROUP * audit.by_reason["stale"]
    assert of_tokens(audit.tokens)["math"].verdict() == bias["math"].verdict()


def test_wait_loses_no_answer_and_the_report_says_that_nothing_was_selected() -> None:
    world = World("wait")
    bias = world.run()
    assert world.waited_for, "some lease was held for a long group"
    assert mean_of(world.trained) == mean_of(world.ended)
    for source in (ALL, "math"):
        assert "nothing selected on length" in bias[source].verdict()
    audit = world.buffer.audit()
    assert audit.ok, audit.problems
    assert audit.by_reason.keys() <= {"denied_window"}
    assert audit.tokens.wasted_share == 0
