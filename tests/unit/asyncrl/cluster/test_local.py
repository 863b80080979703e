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
