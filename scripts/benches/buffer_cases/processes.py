"""Producers and a consumer in processes of their own, started together, each with its own CPU clock."""

import cProfile
import multiprocessing as mp
import pstats
import queue
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import BrokenBarrierError
from typing import Any

import redis

from buffer.embedded import ensure

START_S, RUN_S = 120.0, 1800.0


@dataclass
class Gate:
    """Lets all processes of a measurement go at once, and times what each does behind it."""

    barrier: Barrier
    profile: bool = False
    found: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Wait for the others; the CPU clock of this process runs inside."""
        self.barrier.wait(START_S)  # all are ready: whoever started them reads the server's clock
        self.barrier.wait(START_S)  # and lets them go
        profiler = cProfile.Profile(time.thread_time) if self.profile else None
        start = time.process_time()
        if profiler:
            profiler.enable()
        yield
        if profiler:
            profiler.disable()
            self.found["profile"] = top_of(profiler)
        self.found["cpu_s"] = time.process_time() - start
        self.found["end_s"] = time.monotonic()


Role = Callable[..., None]
"""role(gate, url, *arguments): prepares, then works inside `gate.timed()`, and leaves what it found in `gate.found`."""


@dataclass(frozen=True)
class Outcome:
    """What the processes of one measurement found, the server's CPU seconds included."""

    found: list[dict[str, Any]]
    server_s: float
    wall_s: float
    info: dict[str, Any]
    scripts: dict[str, tuple[int, int]]
    """sha -> (calls, microseconds inside); with `profile` only."""


def top_of(profiler: cProfile.Profile, rows: int = 25) -> list[tuple[str, int, float, float]]:
    """(function, calls, own seconds, cumulative seconds) of the functions with the most own time."""
    stats: Any = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    ranked = sorted(stats.items(), key=lambda item: -item[1][2])[:rows]
    return [
        (f"{Path(file).name}:{line}:{name}", calls, own, total)
        for (file, line, name), (_, calls, own, total, _) in ranked
    ]


@contextmanager
def fresh_server() -> Iterator[str]:
    """URL of a server like a run's own: a unix socket, an append-only file written every second."""
    with TemporaryDirectory(prefix="asyncrl-bench-") as scratch, ensure(Path(scratch)) as server:
        yield server.url


def server_cpu_s(client: Any) -> float:
    """CPU seconds of the server so far, its children's (rewrites of the append-only file) included."""
    info = client.info("cpu")
    return float(sum(info[name] for name in info if name in _CPU_FIELDS))


_CPU_FIELDS = ("used_cpu_sys", "used_cpu_user", "used_cpu_sys_children", "used_cpu_user_children")


Watch = Callable[[Any], None]
"""Called with a client of the server, every WATCH_EVERY_S while a measurement runs."""
WATCH_EVERY_S = 0.25


def together(
    url: str, roles: list[tuple[Role, tuple[Any, ...]]], *, profile: bool = False, watch: Watch | None = None
) -> Outcome:
    """Run every role in a process of its own; the clock runs from when all are ready until the last ends."""
    client: Any = redis.Redis.from_url(url)
    if profile:
        client.config_set("slowlog-max-len", 1 << 20)
        client.config_set("slowlog-log-slower-than", 0)
    # Forked from a process that has imported everything and opened nothing.
    clean = mp.get_context("forkserver")
    clean.set_forkserver_preload([role.__module__ for role, _ in roles])
    barrier, answers = clean.Barrier(len(roles) + 1), clean.Queue()
    processes = [
        clean.Process(target=_play, args=(index, role, barrier, answers, url, arguments, profile), daemon=True)
        for index, (role, arguments) in enumerate(roles)
    ]
    for process in processes:
        process.start()
    try:
        try:
            barrier.wait(START_S)
            client.config_resetstat()
            before, start = server_cpu_s(client), time.monotonic()
            barrier.wait(START_S)
        except BrokenBarrierError:
            _collect(answers, len(roles), None)  # raises with what went wrong in a process
            raise
        found = _collect(answers, len(roles), partial(watch, client) if watch else None)
        server_s, info = server_cpu_s(client) - before, client.info("all")
    finally:
        barrier.abort()
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
    ordered = [found[index] for index in range(len(roles))]
    return Outcome(ordered, server_s, max(one["end_s"] for one in ordered) - start, info, _by_script(client))


def _collect(answers: Any, count: int, watch: Callable[[], None] | None) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    deadline = time.monotonic() + RUN_S
    while len(found) < count:
        try:
            index, one = answers.get(timeout=WATCH_EVERY_S)
        except queue.Empty:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{count - len(found)} processes did not end in {RUN_S} s") from None
            if watch:
                watch()
        else:
            found[index] = one
            if "error" in one:  # the others may wait for it for ever
                raise RuntimeError(f"a process of the benchmark failed: {one['error']}")
    return found


def _by_script(client: Any) -> dict[str, tuple[int, int]]:
    """What the slow log has of scripts: everything under `profile`, and next to nothing otherwise."""
    found: dict[str, tuple[int, int]] = {}
    for entry in client.slowlog_get(1 << 20):
        name, _, rest = entry["command"].partition(b" ")
        if name.upper() == b"EVALSHA":
            sha = rest.split(b" ", 1)[0].decode()
            calls, us = found.get(sha, (0, 0))
            found[sha] = (calls + 1, us + entry["duration"])
    return found


def _play(
    index: int, role: Role, barrier: Barrier, answers: Any, url: str, arguments: tuple[Any, ...], profile: bool
) -> None:
    gate = Gate(barrier, profile)
    try:
        role(gate, url, *arguments)
    except BaseException as error:
        barrier.abort()
        answers.put((index, {"error": f"{role.__name__}: {type(error).__name__}: {error}"}))
        raise
    answers.put((index, gate.found))
