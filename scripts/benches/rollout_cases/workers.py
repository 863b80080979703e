"""What a rollout worker costs by itself: CPU by concurrent episodes, and memory with two thousand of them.

A real worker process with a real Redis and reward processes, over a fake engine in a process of its own that answers
at 50 tokens a second; nobody trains: groups stay in the buffer. CPU counts the worker and the processes it started,
user and system, over a stretch after every slot is filled. Answers have one length, so that episodes end spread out
only by when they began: they begin as the worker gets to them.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from buffer import ReplayBuffer
from buffer.versions import label, pack
from tests.support.fast_engine import Settings, running_engine
from tests.support.redis_server import running_redis
from tests.support.tiny_policy import write_tiny_model
from tests.support.worker_process import WorkerProcess, worker_config, worker_process
from weightsync.log import open_log

Figures = dict[str, float]
VERSION = pack(1, 0)
TOKENS_PER_S = 50.0
GROUP, MAX_GROUPS, GROUP_BYTES = 8, 8192, 1 << 19
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Load:
    """How many episodes are played at once, how long their answers are, and for how many seconds it is watched."""

    slots: int
    answer_tokens: int
    watched_s: float


@dataclass(frozen=True)
class Seen:
    """A worker and its children at one moment."""

    at_s: float
    worker_cpu_s: float
    children_cpu_s: float
    rss_bytes: int
    num_episodes: int


def measure(load: Load) -> Figures:
    """One worker under one load.

    Returns:
        `core_share`: of one core, by the worker and its children; `worker_only`: without children (scoring);
        `core_share_100`: the same by 100 episodes; `cpu_ms_per_episode`; `episodes_per_s`; `rss_mb`: the worker's
        memory at the end; `rss_growth_kb_per_episode`: growth over the second half, by episode ended in it;
        `playing`: of the slots, how many were filled at the end.
    """
    with running_worker(load) as (worker, buffer, pid):
        worker.until("every slot is filled", lambda: _fact(buffer, worker, "episodes_playing") >= load.slots, 300.0)
        turn_s = load.answer_tokens / TOKENS_PER_S
        _sleep(worker, 1.2 * turn_s)
        seen = [_look(pid, buffer, worker)]
        for _ in range(2):
            _sleep(worker, load.watched_s / 2)
            seen.append(_look(pid, buffer, worker))
        playing = _fact(buffer, worker, "episodes_playing")
    first, middle, last = seen
    wall_s, ended = last.at_s - first.at_s, last.num_episodes - first.num_episodes
    worker_s = last.worker_cpu_s - first.worker_cpu_s
    children_s = last.children_cpu_s - first.children_cpu_s
    share = (worker_s + children_s) / wall_s
    return {
        "core_share": round(share, 4),
        "worker_only": round(worker_s / wall_s, 4),
        "core_share_100": round(share * 100 / load.slots, 4),
        "cpu_ms_per_episode": round(1000 * (worker_s + children_s) / ended, 3),
        "episodes_per_s": round(ended / wall_s, 1),
        "rss_mb": round(last.rss_bytes / 1e6, 1),
        "rss_growth_kb_per_episode": round(
            (last.rss_bytes - middle.rss_bytes) / 1024 / max(1, last.num_episodes - middle.num_episodes), 3
        ),
        "playing": playing,
    }


@contextmanager
def running_worker(load: Load) -> Iterator[tuple[WorkerProcess, ReplayBuffer, int]]:
    """A worker that is admitted without end."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis = stack.enter_context(running_redis())
        config = worker_config(
            home,
            "load",
            write_tiny_model(home / "model"),
            rollout={"n": GROUP, "slots": load.slots, "max_new_tokens": load.answer_tokens, "temperature": 1.0},
            inference={"context_length": load.answer_tokens + 64},
            buffer={"max_bytes": MAX_GROUPS * GROUP_BYTES, "max_group_bytes": GROUP_BYTES},
        )
        buffer = ReplayBuffer.connect(redis.url, config.run.name, config.buffer, config.staleness)
        stack.callback(buffer.close)
        buffer.recover("nonce", None, number=0, limit=0, groups_per_version=MAX_GROUPS)
        speed = Settings(tokens_per_s=TOKENS_PER_S, answer_tokens=load.answer_tokens, label=label(VERSION))
        engine = stack.enter_context(running_engine(speed))
        weights = open_log(redis.url, config.run.name)
        stack.callback(weights.close)
        weights.register("server-0", "life", engine, lease_s=3600.0)
        weights.put_ack("server-0", "life", VERSION, 77, "serving")
        worker = stack.enter_context(worker_process(config, redis.url, home / "worker.log"))
        yield worker, buffer, int(worker.name.rpartition(".")[2])


def _look(pid: int, buffer: ReplayBuffer, worker: WorkerProcess) -> Seen:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    rss = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    cpu_s = sum(_cpu_s(int(child)) for child in children)
    return Seen(time.monotonic(), _cpu_s(pid), cpu_s, rss, int(_fact(buffer, worker, "episodes")))


def _fact(buffer: ReplayBuffer, worker: WorkerProcess, name: str) -> float:
    return float(buffer.reports().get(worker.name, {}).get(name, 0.0))


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process and of the children that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICK


def _sleep(worker: WorkerProcess, seconds: float) -> None:
    """Let it work so long, and fail if it dies."""
    until = time.monotonic() + seconds
    worker.until("its time is over", lambda: time.monotonic() >= until, seconds + 60.0)
