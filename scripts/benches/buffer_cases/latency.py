"""Put -> in the consumer's hands at a steady pace: an open loop, whose clock starts when a group was due.

Ours: the claim was reserved and the Group made before it is due, as by a worker that played it; then put (encode, hash,
payload, transition); the consumer blocks in a lease of one group and fetches it. Raw Redis: joins and
sends; the consumer blocks in BLMOVE and reads. Raw is measured before and after ours, on the same server settings.
"""

import statistics
import sys
import time
from threading import Event

import numpy as np

from buffer import Group
from scripts.benches.buffer_cases import ours
from scripts.benches.buffer_cases.load import READY_MADE, make_groups
from scripts.benches.buffer_cases.processes import Gate, fresh_server, together
from scripts.benches.buffer_cases.raw_redis import OneBlob

RATE, DUE = 20.0, "due_s"
COMMIT_EVERY = 100
_never = Event()


def _until(due_s: float) -> None:
    while (left := due_s - time.monotonic()) > 0:
        _never.wait(left)


def produce_raw(gate: Gate, url: str, count: int) -> None:
    """Role: one group every 1/RATE seconds; the id says when it was due."""
    redis = OneBlob(url)
    groups = [redis.prepare(group) for group in make_groups(READY_MADE)]
    with gate.timed():
        start = time.monotonic()
        for index in range(count):
            due = start + (index + 1) / RATE
            _until(due)
            redis.put(repr(due), groups[index % READY_MADE])


def consume_raw(gate: Gate, url: str, count: int) -> None:
    """Role: seconds from due to in hand, per group."""
    redis, seconds = OneBlob(url), []
    with gate.timed():
        while len(seconds) < count:
            if (taken := redis.get()) is not None:
                seconds.append(time.monotonic() - float(taken[0]))
                redis.acknowledge(taken[0])
    gate.found["seconds"] = seconds


def produce(gate: Gate, url: str, count: int) -> None:
    """Role: the same through the buffer."""
    buffer, groups = ours.connect(url), ours.ready_made(0)
    with gate.timed():
        start = time.monotonic()
        for index in range(count):
            due = start + (index + 1) / RATE
            claim = ours.admitted(buffer, "producer")
            trajectories = groups[index % READY_MADE]
            group = Group(claim.ordinal, claim.attempt, "synthetic", trajectories, {DUE: due})
            _until(due)
            assert buffer.put(claim, group) == "ready"
    buffer.close()


def consume(gate: Gate, url: str, count: int) -> None:
    """Role: lease one, fetch it, look at the clock."""
    buffer, seconds = ours.connect(url), []
    trainer = ours.Trainer(buffer, groups_per_step=1)
    with gate.timed():
        while len(seconds) < count:
            (entry,) = trainer.wait_for_batch().entries
            due = buffer.fetch(entry).extra_info[DUE]
            seconds.append(time.monotonic() - float(str(due)))
            trainer.finish_step()
            if len(seconds) % COMMIT_EVERY == 0:
                trainer.commit()
    gate.found["seconds"] = seconds
    buffer.close()


CONTENDERS = {"raw": (consume_raw, produce_raw), "ours": (consume, produce)}


def _seconds(name: str, count: int) -> list[float]:
    take, give = CONTENDERS[name]
    with fresh_server() as url:
        return list(together(url, [(take, (count,)), (give, (count,))]).found[0]["seconds"])


def compare(count: int, rounds: int) -> dict[str, float]:
    """p50 of ours over the mean p50 of raw just before and just after, the median of the rounds; p99 of all."""
    ratios, every = [], {"raw": list[float](), "ours": list[float]()}
    before = _seconds("raw", count)
    for _ in range(rounds):
        mine, after = _seconds("ours", count), _seconds("raw", count)
        its = (statistics.median(before) + statistics.median(after)) / 2
        ratios.append(statistics.median(mine) / its)
        print(f"latency: ours p50 {1e3 * statistics.median(mine):.2f} ms, raw {1e3 * its:.2f} ms", file=sys.stderr)
        every["raw"] += before
        every["ours"] += mine
        before = after
    figures = {"latency_over_raw_p50": round(statistics.median(ratios), 3)}
    figures |= {"latency_over_raw_p50_low": round(min(ratios), 3), "latency_over_raw_p50_high": round(max(ratios), 3)}
    for name, seconds in every.items():
        for percent in (50, 99):
            figures[f"latency_{name}_p{percent}_ms"] = round(1e3 * float(np.percentile(seconds, percent)), 3)
    return figures
