"""Memory of the server over the bytes that the ledger accounts for, while many groups of mixed sizes pass through.

Lengths are log-normal within a prompt and between prompts, cut at 16k tokens: groups of 30 KB to 1 MB, 150 KB on
average. Each producer plays 64 at a time and puts whichever ends; one in fifty is given up and played again. The
window, and a consumer that takes a batch only while the buffer is full, keep the resident set at its size, but for what
a commit frees; the clock of the figures starts when it is full. RSS is what an out-of-memory killer counts; `used` is
what the allocator was asked for. Both include what the server needs for itself: connections, Lua, and the tail of the
append-only file that waits for the disk: up to two seconds of all that comes in, at full speed here.
`_rss_without_tail` leaves that out. `_rss_over_most` is the largest RSS over the most that was ever accounted for: what
a budget of bytes must be multiplied by.
"""

import itertools
import resource
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from buffer import Claim, ReplayBuffer, Trajectory
from buffer.hints import Hints
from buffer.keys import ledger_key
from scripts.benches.buffer_cases import ours
from scripts.benches.buffer_cases.load import TRAJECTORIES, Arrays, group_of, trajectories_of
from scripts.benches.buffer_cases.processes import Gate, fresh_server, together

POOL, LONGEST, MEDIAN = 512, 16384, 1500
PLAYED_AT_ONCE, GIVEN_UP_EVERY = 64, 50


def pool_of(seed: int) -> list[Trajectory]:
    """Trajectories by length, from which groups are drawn: neighbours, as answers to one prompt are alike."""
    rng = np.random.default_rng(seed)
    lengths = np.sort(np.clip(rng.lognormal(np.log(MEDIAN), 0.8, POOL), 64, LONGEST).astype(int))

    def arrays(length: int) -> Arrays:
        tokens = rng.integers(0, 150000, length, dtype=np.int32)
        return tokens, rng.standard_normal(length, dtype=np.float32), np.ones(length, np.uint8)

    return list(trajectories_of([arrays(length) for length in lengths], ours.FIRST_VERSION))


def produce(gate: Gate, url: str, seed: int) -> None:
    """Role: put groups whenever the window has room, until the run is stopped."""
    buffer, pool, rng = ours.connect(url), pool_of(seed), np.random.default_rng(seed)
    room, played = buffer.hints("room"), list[Claim]()
    with gate.timed():
        for index in itertools.count():
            answer = buffer.reserve(f"producer-{seed}")
            if isinstance(answer, Claim):
                played.append(answer)
            elif answer.reason == "stopped":
                break
            if len(played) < PLAYED_AT_ONCE and isinstance(answer, Claim):
                continue
            if not played:
                room.wait(ours.WAIT_S)
                continue
            claim = played.pop(int(rng.integers(0, len(played))))
            if index % GIVEN_UP_EVERY == 0:
                buffer.abandon(claim)
            else:
                chosen = np.clip(rng.integers(0, POOL) + rng.integers(-40, 41, TRAJECTORIES), 0, POOL - 1)
                buffer.put(claim, group_of(claim.ordinal, claim.attempt, tuple(pool[i] for i in chosen)))
    buffer.close()


def consume(gate: Gate, url: str, count: int, resident: int) -> None:
    """Role: train on `count` groups, once the buffer is full of them."""
    buffer = ours.connect(url)
    # One group per version and a limit of the resident set: the window is as wide, and no group is ever too old.
    trainer = ours.Trainer(buffer, limit=resident, groups_per_version=1)
    hints = buffer.hints("ready")
    with gate.timed():
        for step in range(1, count // ours.GROUPS_PER_STEP + 1):
            _await_full(buffer, hints, resident)
            for entry in trainer.wait_for_batch().entries:
                buffer.fetch(entry)
            trainer.finish_step()
            if step % ours.STEPS_PER_CHECKPOINT == 0:
                trainer.commit()
        buffer.stop()
    buffer.close()


def _await_full(buffer: ReplayBuffer, hints: Hints, resident: int) -> None:
    while (missing := round(0.95 * resident) - buffer.counts()["ready"]) > 0:
        hints.wait(ours.WAIT_S, num_ready=missing)


@dataclass
class Watch:
    """Samples the server now and then."""

    least_bytes: int
    rows: list[tuple[int, int, int, int]] = field(default_factory=list)
    pid: int = 0

    def __call__(self, client: Any) -> None:
        """Bytes accounted, used, resident in memory, and in the tail of the file; from when the buffer is full."""
        self.pid = self.pid or client.info("server")["process_id"]
        fields = client.hmget(ledger_key(ours.RUN, "run"), "resident_bytes", "dead_bytes")
        accounted = sum(int(value or 0) for value in fields)
        if accounted >= self.least_bytes or self.rows:
            info = client.info("memory")
            # Asked of the kernel: the server's own figure is up to 100 ms old, and a commit frees much at once.
            rss = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * resource.getpagesize()
            self.rows.append((accounted, info["used_memory"], rss, info["mem_aof_buffer"]))


def soak(count: int, resident: int) -> dict[str, float]:
    """Ratios over the steady state."""
    watch, num_producers = Watch(least_bytes=int(0.9 * resident * mean_group_bytes())), 2
    roles = [(consume, (count, resident)), *((produce, (seed,)) for seed in range(num_producers))]
    with fresh_server() as url:
        outcome = together(url, roles, watch=watch)
        ours.check(url)
    rows = np.array(watch.rows, float)
    assert len(rows), "no sample of the full buffer: raise the number of groups"
    used, rss, tail = rows[:, 1] / rows[:, 0], rows[:, 2] / rows[:, 0], rows[:, 3] / rows[:, 0]
    figures = {
        "memory_num_groups": count,
        "memory_accounted_mb": round(float(rows[:, 0].mean()) / 1e6, 1),
        "memory_used_over_accounted_mean": round(float(used.mean()), 3),
        "memory_used_over_accounted_max": round(float(used.max()), 3),
        "memory_rss_over_accounted_mean": round(float(rss.mean()), 3),
        "memory_rss_over_accounted_p99": round(float(np.percentile(rss, 99)), 3),
        "memory_rss_over_accounted_max": round(float(rss.max()), 3),
        "memory_rss_without_tail_max": round(float((rss - tail).max()), 3),
        "memory_rss_over_most": round(float(rows[:, 2].max() / rows[:, 0].max()), 3),
        "memory_tail_mb_max": round(float(rows[:, 3].max()) / 1e6, 1),
        "memory_server_ms_group": round(1000 * outcome.server_s / (count + resident), 4),
    }
    print(f"memory: {len(rows)} samples, {outcome.wall_s:.0f} s, {figures}", file=sys.stderr)
    return figures


def mean_group_bytes() -> float:
    """Of the columns of a group, over the pool: 8 bytes a token and a bit."""
    return TRAJECTORIES * 8.125 * sum(one.num_tokens for one in pool_of(0)) / POOL
