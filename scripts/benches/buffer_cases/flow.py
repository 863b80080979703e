"""Put and lease at once, as fast as they go: CPU ms a group of every process, ours beside the floors, in turns."""

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scripts.benches.buffer_cases import ours
from scripts.benches.buffer_cases.load import READY_MADE, make_groups
from scripts.benches.buffer_cases.processes import Gate, Outcome, Role, fresh_server, together
from scripts.benches.buffer_cases.raw_redis import BlobPerTrajectory, OneBlob, RawRedis

FORMS: dict[str, type[OneBlob] | type[BlobPerTrajectory]] = {"raw": OneBlob, "raw8": BlobPerTrajectory}


@dataclass(frozen=True)
class Contender:
    """produce(gate, url, seed, count) and consume(gate, url, count), with what comes after these arguments."""

    produce: Role
    consume: Role
    extra: tuple[Any, ...] = ()


def produce_raw(gate: Gate, url: str, seed: int, count: int, form: str) -> None:
    """Role: put `count` groups."""
    redis = FORMS[form](url)
    groups = [redis.prepare(group) for group in make_groups(READY_MADE, seed=seed)]
    with gate.timed():
        for index in range(count):
            redis.put(f"{seed}-{index}", groups[index % READY_MADE])


def consume_raw(gate: Gate, url: str, count: int, form: str) -> None:
    """Role: take `count` groups, one at a time."""
    redis: RawRedis = FORMS[form](url)
    num_tokens, left = 0, count
    with gate.timed():
        while left:
            if (taken := redis.get()) is not None:
                gid, views = taken
                num_tokens += sum(len(tokens) for tokens, _, _ in views)
                redis.acknowledge(gid)
                left -= 1
    gate.found["num_tokens"] = num_tokens


CONTENDERS = {
    "ours": Contender(ours.produce, ours.consume),
    "raw": Contender(produce_raw, consume_raw, ("raw",)),
    "raw8": Contender(produce_raw, consume_raw, ("raw8",)),
}


@dataclass(frozen=True)
class Split:
    """CPU ms a group, and what moved."""

    producer: float
    consumer: float
    server: float
    groups_per_s: float

    @property
    def total(self) -> float:
        return self.producer + self.consumer + self.server


def measure(name: str, num_producers: int, count: int, *, profile: bool = False) -> tuple[Split, Outcome]:
    """One repetition on a server of its own."""
    contender, share = CONTENDERS[name], count // num_producers
    roles = [(contender.consume, (share * num_producers, *contender.extra))]
    roles += [(contender.produce, (seed, share, *contender.extra)) for seed in range(num_producers)]
    with fresh_server() as url:
        outcome = together(url, roles, profile=profile)
        if name == "ours":
            ours.check(url)
    ms = 1000 / (share * num_producers)
    consumer, *producers = outcome.found
    split = Split(
        producer=ms * sum(one["cpu_s"] for one in producers),
        consumer=ms * consumer["cpu_s"],
        server=ms * outcome.server_s,
        groups_per_s=share * num_producers / outcome.wall_s,
    )
    return split, outcome


def compare(num_producers: int, count: int, repeats: int) -> dict[str, float]:
    """Medians over repetitions in which every contender has its turn; ratios are medians of each turn's ratio."""
    splits: dict[str, list[Split]] = {name: [] for name in CONTENDERS}
    for repeat in range(repeats):
        # Turned round every time, so that none always runs on what another has left of the machine.
        order = list(CONTENDERS) if repeat % 2 == 0 else list(reversed(CONTENDERS))
        for name in order:
            split, outcome = measure(name, num_producers, count)
            splits[name].append(split)
            leases = outcome.found[0].get("num_leases")
            print(
                f"flow {num_producers}p {name:5s} {_said(split)}{f', {leases} leases' if leases else ''}",
                file=sys.stderr,
            )
    suffix = f"{num_producers}p"
    figures: dict[str, float] = {}
    for floor, key in (("raw", "over_raw_redis"), ("raw8", "over_raw_redis_8_blobs")):
        ratios = [mine.total / its.total for mine, its in zip(splits["ours"], splits[floor], strict=True)]
        figures[f"{key}_{suffix}"] = round(statistics.median(ratios), 3)
        figures[f"{key}_{suffix}_low"], figures[f"{key}_{suffix}_high"] = round(min(ratios), 3), round(max(ratios), 3)
        best, its_best = (min(one.total for one in splits[name]) for name in ("ours", floor))
        figures[f"{key}_{suffix}_best"] = round(best / its_best, 3)
    for name, found in splits.items():
        for part in ("total", "producer", "consumer", "server"):
            figures[f"{name}_{suffix}_{part}_ms"] = round(_median(found, lambda one, part=part: getattr(one, part)), 4)
        figures[f"{name}_{suffix}_groups_per_s"] = round(max(one.groups_per_s for one in found), 1)
    return figures


def _median(splits: list[Split], value: Callable[[Split], float]) -> float:
    return statistics.median(value(one) for one in splits)


def _said(split: Split) -> str:
    return (
        f"{split.total:.3f} ms = producer {split.producer:.3f} + consumer {split.consumer:.3f} + server "
        f"{split.server:.3f}; {split.groups_per_s:.0f} groups/s"
    )
