"""A whole soak: start everything, do the faults, then let it drain, and judge what is left.

consumes  a schedule of faults    produces  a report: figures, and what is wrong (nothing, one hopes)
"""

import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

from buffer import ReplayBuffer
from tests.support.redis_server import RedisServer
from tests.support.soak.cluster import MAIN, Cluster
from tests.support.soak.journal import Journal
from tests.support.soak.scene import Scene
from tests.support.soak.schedule import Faults, schedule
from tests.support.soak.settings import Settings
from tests.support.soak.verdict import Verdict

LOOK_S = 0.03
WARM_UP_S = 60.0
DRAIN_S = 120.0
LEAVE_S = 30.0
_never = Event()


@dataclass(frozen=True, slots=True)
class Report:
    """Figures by name, how often each fault came, and every violation in words."""

    figures: dict[str, Any]
    faults: Counter[str]
    violations: list[str]


def soak(seed: int, seconds: float, *, keep: bool = False) -> Report:
    """Do faults for `seconds`, then drain and judge.

    Args:
        keep: leave the files of a soak with violations where they are, and say where.
    """
    # A socket's path may have 107 bytes at most, so not below pytest's own directory.
    work = Path(tempfile.mkdtemp(prefix="asyncrl-soak-"))
    server = RedisServer(work, appendonly=True, appendfsync="everysec")
    settings = Settings(work=work, url=server.url, seed=seed)
    settings.checkpoints.mkdir()
    violations: list[str] = []
    try:
        server.start()
        report = _soak(settings, server, seconds)
        violations = report.violations
        return report
    finally:
        server.stop()
        if keep and violations:
            violations.append(f"the files of this soak are in {work}")
        else:
            shutil.rmtree(work)


def _soak(settings: Settings, server: RedisServer, seconds: float) -> Report:
    cluster = Cluster(settings, server)
    buffer = settings.connect()
    scene = Scene(cluster, buffer, Random(f"faults {settings.seed}"))
    faults = Faults(scene, schedule(settings.seed, seconds), Journal(settings.journal, "driver"))
    try:
        _warm_up(cluster)
        begun_s = time.monotonic()
        _suffer(cluster, faults, seconds)
        suffered_s = time.monotonic() - begun_s
        _drain(cluster, buffer)
        cluster.stop_all(LEAVE_S)
    finally:
        cluster.kill_all()
    verdict = Verdict(settings, cluster, buffer)
    figures = {
        "seed": settings.seed,
        "policy": {name: value for name, value in settings.staleness if value is not None},
        "suffered_s": round(suffered_s, 1),
        "drained_s": round(time.monotonic() - begun_s - suffered_s, 1),
        **verdict.figures(),
    }
    violations = [*cluster.journal.violations, *cluster.violations, *verdict.violations()]
    buffer.close()
    return Report(figures, faults.counts, violations)


def _warm_up(cluster: Cluster) -> None:
    """Until something has been trained."""
    deadline = time.monotonic() + WARM_UP_S
    while not cluster.journal.counts["trained"]:
        assert time.monotonic() < deadline, f"nothing was trained in {WARM_UP_S} s: {cluster.violations}"
        cluster.look_after()
        _never.wait(LOOK_S)


def _suffer(cluster: Cluster, faults: Faults, seconds: float) -> None:
    """The faults, one after the other and beside each other, while who dies is started again."""
    begun_s = time.monotonic()
    while not faults.idle:
        second = time.monotonic() - begun_s
        if second > seconds:
            faults.finish()
        cluster.look_after()
        faults.look(second)
        _never.wait(LOOK_S)


def _drain(cluster: Cluster, buffer: ReplayBuffer) -> None:
    """No more faults, no new prompts: whatever is open comes to its end. One producer is enough for that."""
    cluster.settings.draining.touch()
    last = cluster.producers[0]
    cluster.held.update(slot for slot in cluster.producers if slot != last)
    for slot in cluster.held:
        cluster.stop(slot)
    deadline = time.monotonic() + DRAIN_S
    while True:
        cluster.look_after()
        counts = buffer.counts()
        if not any(counts[state] for state in ("in_flight", "waiting", "ready", "leased")):
            break
        if time.monotonic() > deadline:
            cluster.violations.append(f"not drained in {DRAIN_S} s: {counts}")
            break
        _never.wait(LOOK_S)
    cluster.held.update((last, MAIN))
