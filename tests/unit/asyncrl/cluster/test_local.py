"""Child processes: their reasons reach the parent, they stop when asked, and they die with it."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.cluster import Child, Failure, LocalCluster, Seat
from asyncrl.cluster import local as module

SEAT = Seat("workers", 0)


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    """A cluster whose children run the given code in place of a role."""
    real = subprocess.Popen

    def popen(command: list[str], **options: object) -> object:
        return real([sys.executable, "-c", command[-1]], **options)  # type: ignore[call-overload]  # options pass through

    monkeypatch.setattr(module.subprocess, "Popen", popen)
    return LocalCluster(tmp_path, {"FROM_CLUSTER": "1"}, stop_timeout_s=20.0)


def ended(child: Child) -> int | None:
    asyncio.run(child.ended(60.0, "test waits for a child"))
    return child.exit_code()


def test_a_child_that_leaves_its_reason_is_quoted(local: LocalCluster) -> None:
    child = local.start(
        "role",
        "rank-0",
        ["from asyncrl.cluster import leave_reason as l; l('disk full', 5); raise SystemExit(5)"],
        seat=SEAT,
    )
    assert ended(child) == 5
    assert child.failure() == Failure("rank-0", 5, "disk full")


def test_a_child_that_is_killed_is_named_with_its_signal_and_log(local: LocalCluster) -> None:
    child = local.start("role", "worker-1", ["import os, signal; os.kill(os.getpid(), signal.SIGKILL)"], seat=SEAT)
    assert ended(child) == -signal.SIGKILL
    failure = child.failure()
    assert failure is not None
    assert "SIGKILL" in failure.message
    assert "worker-1.log" in failure.message


def test_an_old_reason_is_not_taken_for_a_new_one(local: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "rank-0.error.json").write_text('{"message": "left by an earlier run", "exit_code": 1}')
    child = local.start("role", "rank-0", ["raise SystemExit(9)"], seat=SEAT)
    ended(child)
    assert "earlier run" not in str(child.failure())


def test_stop_asks_first_and_kills_what_does_not_listen(tmp_path: Path, local: LocalCluster) -> None:
    local._stop_timeout_s = 1.0
    code = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    child = local.start("role", "deaf", [code], seat=SEAT)
    while b"up" not in child.log.read_bytes():
        os.sched_yield()
    asyncio.run(local.stop())
    assert child.exit_code() == -signal.SIGKILL
    assert local.children == []


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    child_code = (
        "from asyncrl.cluster import die_with_parent as d; d(); print('up', flush=True); import signal; signal.pause()"
    )
    parent_code = (
        "import os, subprocess, sys; env = {**os.environ, 'ASYNCRL_PARENT_PID': str(os.getpid())};"
        f"c = subprocess.Popen([sys.executable, '-c', {child_code!r}], env=env, stdout=subprocess.PIPE);"
        "c.stdout.readline(); print(c.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    parent = subprocess.run([sys.executable, "-c", parent_code], capture_output=True, text=True, check=False)
    pid = int(parent.stdout)
    for _ in range(100_000):  # the kernel delivers the signal at once; the loop is bounded, not timed
        if not Path(f"/proc/{pid}").exists() or "State:\tZ" in Path(f"/proc/{pid}/status").read_text():
            return
        os.sched_yield()
    pytest.fail(f"process {pid} outlived its parent")
