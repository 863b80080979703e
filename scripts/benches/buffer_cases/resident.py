"""What a transition costs with many groups resident over what it costs with few: CPU of client and server together.

Two servers side by side, filled with ready groups of 8 x 16 tokens; turns of one checkpoint's work (ten steps) on each:
reserve, renew and put 32 groups, lease 32 and advance; then ledger and commit. `cost_100k_over_1k` is
that of a group's whole way, each transition amortised over the groups it moves; each transition's own is beside it.
"""

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import redis

from buffer import Trajectory
from scripts.benches.buffer_cases import ours
from scripts.benches.buffer_cases.load import group_of, make_groups, trajectories_of
from scripts.benches.buffer_cases.processes import Gate, fresh_server, server_cpu_s, together

FILLERS, TOKENS = 2, 16
KINDS = ("reserve", "renew", "put", "lease", "advance", "checkpoint")


def small_groups() -> list[tuple[Trajectory, ...]]:
    """Trajectories of 16 tokens: the ledger's work is the same, the memory is not."""
    return [trajectories_of(group, ours.FIRST_VERSION) for group in make_groups(64, TOKENS, TOKENS)]


def fill(gate: Gate, url: str, seed: int, count: int) -> None:
    """Role: put `count` groups."""
    buffer, groups = ours.connect(url), small_groups()
    with gate.timed():
        for index in range(count):
            claim = ours.admitted(buffer, f"filler-{seed}")
            buffer.put(claim, group_of(claim.ordinal, claim.attempt, groups[index % len(groups)]))
    buffer.close()


class Crowd:
    """One buffer with `num_resident` ready groups, and the costs found on it."""

    def __init__(self, url: str, num_resident: int) -> None:
        self.num_resident = num_resident
        self._buffer, self._groups = ours.connect(url), small_groups()
        self._trainer = ours.Trainer(self._buffer)
        self._client: Any = redis.Redis.from_url(url)
        together(url, [(fill, (seed, num_resident // FILLERS)) for seed in range(FILLERS)])
        assert self._buffer.counts()["ready"] == num_resident
        self.cost_s: dict[str, list[float]] = {kind: [] for kind in KINDS}

    def turn(self) -> None:
        """The work of one checkpoint; leaves as many ready groups as it found."""
        spent = dict.fromkeys(KINDS, 0.0)
        for _ in range(ours.STEPS_PER_CHECKPOINT):
            self._step(spent)
        with self._costing(spent, "checkpoint"):
            self._trainer.commit()
        for kind, seconds in spent.items():
            self.cost_s[kind].append(seconds)

    def _step(self, spent: dict[str, float]) -> None:
        count = ours.GROUPS_PER_STEP
        with self._costing(spent, "reserve"):
            claims = [ours.admitted(self._buffer, "worker") for _ in range(count)]
        with self._costing(spent, "renew"):
            for claim in claims:
                self._buffer.renew(claim, ours.FIRST_VERSION)
        groups = [group_of(c.ordinal, c.attempt, self._groups[c.ordinal % len(self._groups)]) for c in claims]
        with self._costing(spent, "put"):
            for claim, group in zip(claims, groups, strict=True):
                self._buffer.put(claim, group)
        with self._costing(spent, "lease"):
            self._trainer.wait_for_batch()
        with self._costing(spent, "advance"):
            self._trainer.finish_step()

    @contextmanager
    def _costing(self, spent: dict[str, float], kind: str) -> Iterator[None]:
        before = server_cpu_s(self._client) + time.process_time()
        yield
        spent[kind] += time.process_time() + server_cpu_s(self._client) - before

    def per_group_us(self, kind: str) -> float:
        """Median over the turns."""
        return 1e6 * statistics.median(self.cost_s[kind]) / (ours.GROUPS_PER_STEP * ours.STEPS_PER_CHECKPOINT)

    def close(self) -> None:
        """The books add up, and the connection goes."""
        assert not self._buffer.audit().problems
        self._buffer.close()


def compare(few: int, many: int, turns: int) -> dict[str, float]:
    """Ratios by transition; each in its turn on both."""
    with ExitStack() as stack:
        crowds = [Crowd(stack.enter_context(fresh_server()), count) for count in (few, many)]
        for turn in range(turns + 1):
            for crowd in crowds if turn % 2 == 0 else reversed(crowds):
                crowd.turn()
                if turn == 0:  # warms up
                    crowd.cost_s = {kind: [] for kind in KINDS}
        figures: dict[str, float] = {}
        for kind in KINDS:
            less, more = (crowd.per_group_us(kind) for crowd in crowds)
            figures[f"cost_{kind}_us_few"], figures[f"cost_{kind}_us_many"] = round(less, 1), round(more, 1)
            figures[f"cost_{kind}_many_over_few"] = round(more / less, 3)
            print(f"resident: {kind:10s} {less:7.1f} us a group at {few}, {more:7.1f} at {many}", file=sys.stderr)
        whole = [sum(crowd.per_group_us(kind) for kind in KINDS) for crowd in crowds]
        figures["cost_100k_over_1k"] = round(whole[1] / whole[0], 3)
        for crowd in crowds:
            crowd.close()
    return figures
