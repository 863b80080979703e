"""Groups of 1, 10 and 100 MB through both homes of payloads: CPU ms a MB, and memory beyond what the caller holds.

Put: encode, hash, payload, transition. Fetch: read, hash, decode. Beside them plain SET and GET of the same bytes by
redis-py, and writing and reading a file. CPU is the process's and the server's. Memory is the highest resident set of
the process during the call, less that before it, per byte of the payload: the kernel's high-water mark, set back first.
The group itself, or what was read, counts for nothing on the one side and for 1 on the other.
Each contender has a process of its own.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import redis

from buffer import BufferConfig, Group, PayloadConfig, Row, Span, Trajectory
from scripts.benches.buffer_cases import ours
from scripts.benches.buffer_cases.load import TRAJECTORIES, group_of
from scripts.benches.buffer_cases.processes import Gate, fresh_server, server_cpu_s, together

MB = 1_000_000
SIZES_MB = (1, 10, 100)
EXPERTS = 64
"""Bytes a token of the column that makes groups large: chosen experts of a mixture, layer by layer."""


def large_group(num_bytes: int) -> tuple[Trajectory, ...]:
    """Trajectories with a column of experts beside their tokens."""
    rng = np.random.default_rng(0)
    length = num_bytes // TRAJECTORIES // (8 + EXPERTS)

    def one() -> Trajectory:
        row = Row(
            token_ids=rng.integers(0, 150000, length, dtype=np.uint32),
            mask=np.ones(length, np.bool_),
            logprobs=rng.standard_normal(length, dtype=np.float32),
            spans=(Span(ours.FIRST_VERSION, 7, length),),
            num_prompt_tokens=0,
            columns={"experts": rng.integers(0, 256, (length, EXPERTS), dtype=np.uint8)},
        )
        return Trajectory(rows=(row,), reward=1.0)

    return tuple(one() for _ in range(TRAJECTORIES))


class Meter:
    """CPU of this process and the server, and this process's highest memory, around a call."""

    def __init__(self, url: str) -> None:
        self._client: Any = redis.Redis.from_url(url)
        self.costs: dict[str, list[tuple[float, float]]] = {}

    def of(self, name: str, num_bytes: int, call: Callable[[], object]) -> object:
        """Run the call; its CPU ms a MB and bytes of memory a byte are kept under `name`."""
        Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark to what is resident now
        before, start = _status_kb("VmRSS"), server_cpu_s(self._client) + time.process_time()
        answer = call()
        cpu_s = time.process_time() + server_cpu_s(self._client) - start
        extra = (_status_kb("VmHWM") - before) * 1024
        self.costs.setdefault(name, []).append((1e3 * cpu_s / (num_bytes / MB), extra / num_bytes))
        return answer


def _status_kb(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def through_buffer(gate: Gate, url: str, home: str, size_mb: int, repeats: int) -> None:
    """Role: put, lease, fetch, commit, again and again."""
    payload = PayloadConfig(home=home, spill_bytes=1)
    config = BufferConfig(max_bytes=16 << 30, max_group_bytes=512 << 20, payload=payload)
    buffer, trajectories, meter = ours.connect(url, config), large_group(size_mb * MB), Meter(url)
    trainer = ours.Trainer(buffer, groups_per_step=1, groups_per_version=1)
    with gate.timed():
        for _ in range(repeats):
            claim = ours.admitted(buffer, "producer")
            group = group_of(claim.ordinal, claim.attempt, trajectories)
            meter.of("put", size_mb * MB, lambda claim=claim, group=group: buffer.put(claim, group))
            (entry,) = trainer.wait_for_batch().entries
            found = meter.of("fetch", size_mb * MB, lambda entry=entry: buffer.fetch(entry))
            assert isinstance(found, Group)
            assert len(found.trajectories) == TRAJECTORIES
            del found
            trainer.finish_step()
            trainer.commit()
    gate.found["costs"] = meter.costs
    buffer.close()


def plain_redis(gate: Gate, url: str, size_mb: int, repeats: int) -> None:
    """Role: SET, GET, UNLINK."""
    client: Any = redis.Redis.from_url(url)
    blob, meter = np.random.default_rng(0).bytes(size_mb * MB), Meter(url)
    with gate.timed():
        for _ in range(repeats):
            meter.of("put", len(blob), lambda: client.set("blob", blob))
            assert meter.of("fetch", len(blob), lambda: client.get("blob")) == blob
            client.unlink("blob")
    gate.found["costs"] = meter.costs


def plain_file(gate: Gate, url: str, directory: str, size_mb: int, repeats: int) -> None:
    """Role: write, read, unlink."""
    path, blob, meter = Path(directory) / "blob", np.random.default_rng(0).bytes(size_mb * MB), Meter(url)
    with gate.timed():
        for _ in range(repeats):
            meter.of("put", len(blob), lambda: path.write_bytes(blob))
            assert meter.of("fetch", len(blob), path.read_bytes) == blob
            path.unlink()
    gate.found["costs"] = meter.costs


def compare(sizes_mb: tuple[int, ...], repeats: int) -> dict[str, float]:
    """By home and size: the median CPU of the repetitions after one that warms up, and the most memory of any."""
    figures: dict[str, float] = {}
    for size in sizes_mb:
        with TemporaryDirectory(prefix="asyncrl-bench-", dir=".") as scratch:
            home = Path(scratch).absolute().as_uri()
            contenders = {
                "redis": (through_buffer, ("redis", size, repeats + 1)),
                "redis_raw": (plain_redis, (size, repeats + 1)),
                "file": (through_buffer, (home, size, repeats + 1)),
                "file_raw": (plain_file, (scratch, size, repeats + 1)),
            }
            for name, (role, arguments) in contenders.items():
                with fresh_server() as url:
                    costs = together(url, [(role, arguments)]).found[0]["costs"]
                for what, found in costs.items():
                    ms = statistics.median(ms for ms, _ in found[1:])
                    memory = max(memory for _, memory in found)  # later ones may find what the first has left
                    figures[f"size_{size}mb_{name}_{what}_ms_per_mb"] = round(ms, 3)
                    figures[f"size_{size}mb_{name}_{what}_memory"] = round(memory, 2)
                    print(
                        f"sizes: {size:3d} MB {name:9s} {what:5s} {ms:.3f} ms a MB, {memory:.2f} x memory",
                        file=sys.stderr,
                    )
        for home_name in ("redis", "file"):
            for what in ("put", "fetch"):
                key = f"size_{size}mb_{home_name}"
                over = figures[f"{key}_{what}_ms_per_mb"] / figures[f"{key}_raw_{what}_ms_per_mb"]
                figures[f"{key}_{what}_over_raw"] = round(over, 2)
    return figures
