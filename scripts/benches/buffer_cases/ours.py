"""The buffer through its public API, as a rollout worker and rank 0 of a trainer call it.

Producer: reserve, then a Group of the claim's ordinal over ready-made trajectories, then put (encode, hash, payload,
transition). Consumer: every step a lease of 32 groups (after a refusal one that blocks, as the trainer does), a
fetch of all, advance; every ten steps ledger and commit; a sweep at most every five seconds.
"""

import json
import time
from collections.abc import Iterable, Sequence

from buffer import BufferConfig, Claim, Entry, Group, Leased, NotReady, ReplayBuffer, StalenessConfig, Trajectory, pack
from scripts.benches.buffer_cases.load import READY_MADE, group_of, make_groups, trajectories_of
from scripts.benches.buffer_cases.processes import Gate

RUN = "bench"
GROUPS_PER_STEP, STEPS_PER_CHECKPOINT = 32, 10
SWEEP_EVERY_S, WAIT_S = 5.0, 5.0
FIRST_VERSION = pack(1, 0)
LONG_LIMIT = 1 << 16
"""A window that admits everything at once, since raw Redis holds nobody back."""


def connect(url: str, config: BufferConfig | None = None) -> ReplayBuffer:
    """A buffer with default settings; the limit on lag comes with `recover`."""
    return ReplayBuffer.connect(url, RUN, config or BufferConfig(), StalenessConfig())


def ready_made(seed: int, count: int = READY_MADE) -> list[tuple[Trajectory, ...]]:
    """Trajectories of a producer, whose arrays are those that the other contenders put."""
    return [trajectories_of(group, FIRST_VERSION) for group in make_groups(count, seed=seed)]


def admitted(buffer: ReplayBuffer, worker: str) -> Claim:
    """A claim; the window is wide enough for all that a benchmark reserves."""
    claim = buffer.reserve(worker)
    if not isinstance(claim, Claim):
        raise RuntimeError(f"not admitted: {claim.reason}: {claim.detail}")
    return claim


def produce(gate: Gate, url: str, seed: int, count: int) -> None:
    """Role: put `count` groups, one after the other."""
    buffer, groups = connect(url), ready_made(seed)
    with gate.timed():
        for index in range(count):
            claim = admitted(buffer, f"producer-{seed}")
            status = buffer.put(claim, group_of(claim.ordinal, claim.attempt, groups[index % READY_MADE]))
            assert status == "ready", status
    buffer.close()


class Trainer:
    """Rank 0 as far as the buffer knows it."""

    def __init__(
        self,
        buffer: ReplayBuffer,
        *,
        groups_per_step: int = GROUPS_PER_STEP,
        limit: int = LONG_LIMIT,
        groups_per_version: int = GROUPS_PER_STEP,
    ) -> None:
        self.buffer, self.count = buffer, groups_per_step
        self._limit, self._per_version = limit, groups_per_version
        self.branch = buffer.recover("bench", None, number=0, limit=limit, groups_per_version=groups_per_version)
        self.number, self.num_leases = 0, 0
        self._swept_s, self._trained = time.monotonic(), []

    _trained: list[int]

    def wait_for_batch(self, deadline_s: float = 120.0) -> Leased:
        """The batch of the next step, waited for as the trainer does. Fetching is the caller's."""
        until = time.monotonic() + deadline_s
        batch = self._lease(None)
        while not isinstance(batch, Leased):
            if time.monotonic() > until:
                raise RuntimeError(f"no batch in {deadline_s} s: {batch.detail}")
            self.sweep_if_due()
            batch = self._lease(batch)
        self._trained += [entry.ordinal for entry in batch.entries]
        return batch

    def finish_step(self) -> None:
        """A version was trained."""
        self.number += 1
        self.buffer.advance(self.branch, self.number, limit=self._limit, groups_per_version=self._per_version)

    def _lease(self, refusal: NotReady | None) -> Leased | NotReady:
        self.num_leases += 1
        step = self.number + 1
        return self.buffer.lease(self.branch, self.number, step, self.count, after=refusal, wait_s=WAIT_S)

    def sweep_if_due(self) -> None:
        """As the trainer's sweeper does."""
        if time.monotonic() - self._swept_s >= SWEEP_EVERY_S:
            self._swept_s = time.monotonic()
            self.buffer.sweep()

    def commit(self) -> None:
        """What a checkpoint asks of the buffer; its JSON is made, not written."""
        ledger = self.buffer.ledger(self.branch, self.number, self._trained)
        json.dumps(ledger.to_json())
        self.buffer.commit(self.branch, ledger)
        self._trained = []


def consume(gate: Gate, url: str, count: int) -> None:
    """Role: train on `count` groups, a multiple of the groups of a step."""
    buffer = connect(url)
    trainer = Trainer(buffer)
    num_tokens, steps = 0, count // GROUPS_PER_STEP
    with gate.timed():
        for step in range(1, steps + 1):
            num_tokens += sum(_tokens(buffer, trainer.wait_for_batch().entries))
            trainer.finish_step()
            if step % STEPS_PER_CHECKPOINT == 0 or step == steps:
                trainer.commit()
    gate.found["num_tokens"], gate.found["num_leases"] = num_tokens, trainer.num_leases
    buffer.close()


def check(url: str) -> None:
    """The books add up after a measurement."""
    buffer = connect(url)
    problems = buffer.audit().problems
    buffer.close()
    assert not problems, problems


def _tokens(buffer: ReplayBuffer, entries: Sequence[Entry]) -> Iterable[int]:
    for _, group in buffer.fetch_each(entries):
        assert isinstance(group, Group), group
        yield sum(trajectory.num_tokens for trajectory in group.trajectories)
