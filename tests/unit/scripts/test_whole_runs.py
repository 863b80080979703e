"""Commands of a benchmark that ends early are ended with it."""

import signal
import subprocess
import sys
from pathlib import Path

from scripts.benches.whole_runs import end

ROOT = Path(__file__).resolve().parents[3]
COMMAND = """
import os, signal, sys
signal.signal(signal.SIGTERM, {action})
print("ready", flush=True)
signal.pause()
"""
BENCH = """
import subprocess, sys, types
from scripts.benches import __main__ as benches
from scripts.benches.whole_runs import end

def run():
    command = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    print(command.pid, flush=True)
    try:
        command.wait()
    finally:
        end([command])

sys.modules["scripts.benches.endless"] = types.SimpleNamespace(main=run)
benches.main(["endless"])
"""


def started(action: str) -> "subprocess.Popen[bytes]":
    """A command that does so when it is told to stop."""
    process = subprocess.Popen([sys.executable, "-c", COMMAND.format(action=action)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as output:
        assert output.readline() == b"ready\n"
    return process


def test_a_command_is_asked_to_stop_and_killed_if_it_does_not() -> None:
    listens, deaf = started("lambda *_: sys.exit(7)"), started("signal.SIG_IGN")
    end([listens])
    end([deaf], patience_s=0.1)
    assert (listens.returncode, deaf.returncode) == (7, -signal.SIGKILL)


def test_a_benchmark_that_is_told_to_stop_ends_its_commands() -> None:
    bench = subprocess.Popen([sys.executable, "-c", BENCH], cwd=ROOT, stdout=subprocess.PIPE)
    assert bench.stdout is not None
    with bench.stdout as output:
        command = int(output.readline())
        bench.terminate()
        assert bench.wait(60) == 128 + signal.SIGTERM
    assert not Path(f"/proc/{command}").exists(), f"the command {command} outlived the benchmark"
