"""Processes of this machine: what tests/contract/test_cluster.py does not ask of every cluster."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


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


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
@pytest.mark.parametrize("starter", ["its own", "another's"])
def test_a_command_is_asked_to_stop_when_its_starter_ends(starter: str) -> None:
    """Also where that one had ended before the command said its wish. What the command starts does not inherit it."""
    command = (
        "import os, signal; signal.signal(signal.SIGTERM, lambda *_: (print('asked', flush=True), os._exit(0)));"
        "from asyncrl.cluster import STARTER, stop_with_starter as s; s(); print(STARTER in os.environ, flush=True);"
        "os.close(0) or signal.pause()"
    )
    # Standard input of the command is a pipe that it closes once it has said its wish; then the starter dies.
    code = (
        "import os, subprocess, sys; env = {**os.environ, 'ASYNCRL_STARTED_BY': sys.argv[1] or str(os.getpid())};"
        "heard, said = os.pipe();"
        f"subprocess.Popen([sys.executable, '-c', {command!r}], env=env, stdin=said); os.close(said);"
        "os.read(heard, 1); os.kill(os.getpid(), 9)"
    )
    number = "" if starter == "its own" else "1"
    found = subprocess.run(
        [sys.executable, "-c", code, number], capture_output=True, text=True, timeout=60, check=False
    )
    assert found.stdout.splitlines() == (["False", "asked"] if starter == "its own" else ["asked"])
