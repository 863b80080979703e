"""The order in which the rollout side is stopped, and who is told to hurry."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl import waits
from asyncrl.cluster import LocalCluster
from asyncrl.config import Config
from asyncrl.placement import Placement
from asyncrl.run.rollout_side import RolloutSide
from tests.support.event_loop import in_event_loop

PROGRAM = """
import signal, sys

def handle(number, frame):
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGUSR1 or sys.argv[1] == "server-host":
        sys.exit(0)

signal.signal(signal.SIGTERM, handle)
signal.signal(signal.SIGUSR1, handle)
print("up", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RolloutSide:
    """A host and a worker; the worker leaves only when it is told to hurry."""
    real = subprocess.Popen

    def popen(command: list[str], **options: object) -> object:
        role = command[command.index("asyncrl.run") + 1]
        return real([sys.executable, "-c", PROGRAM, role], **options)  # type: ignore[call-overload]  # passed through

    monkeypatch.setattr("asyncrl.cluster.local.subprocess.Popen", popen)
    processes = LocalCluster(tmp_path, {}, stop_timeout_s=60.0)
    return RolloutSide(Config(), processes, tmp_path / "config.json", Placement(ranks=(), servers=((),)))


async def said(log: Path, words: list[str]) -> None:
    """Wait until a child has said this."""
    await waits.until(
        "test", lambda: log.read_text().split() == words or None, why=log.read_text, deadline_s=30.0, recheck_s=0.02
    )


@in_event_loop
async def test_a_notice_that_comes_during_the_stop_reaches_the_workers_and_hosts_go_last(
    side: RolloutSide, tmp_path: Path
) -> None:
    worker, host = tmp_path / "worker-0.log", tmp_path / "server-0.log"
    side.start()
    for log in (worker, host):
        await said(log, ["up"])
    hurry = asyncio.Event()
    stopping = asyncio.create_task(side.stop(hurry))
    await said(worker, ["up", "SIGTERM"])
    assert host.read_text().split() == ["up"], "servers still answer while workers park"
    hurry.set()
    await stopping
    assert worker.read_text().split() == ["up", "SIGTERM", "SIGUSR1"]
    assert host.read_text().split() == ["up", "SIGTERM"]


@in_event_loop
async def test_a_notice_that_came_before_the_stop_is_passed_on_with_it(side: RolloutSide, tmp_path: Path) -> None:
    side.start()
    for name in ("worker-0", "server-0"):
        await said(tmp_path / f"{name}.log", ["up"])
    hurry = asyncio.Event()
    hurry.set()
    await side.stop(hurry)
    assert "SIGUSR1" in (tmp_path / "worker-0.log").read_text()
