"""Run the asyncrl commands as real processes, wait for what they write, and kill them for real."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from asyncrl.cluster import STARTER

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs" / "tiny_cpu.yaml"
LOOK_S = 0.05  # how long to listen for the process's end before looking at its files again
DEADLINE_S = 240.0
CLOCK = ("timing_s/", "perf/", "buffer/age_s", "time_s", "rollout/kv_")
"""Metrics that a clock gives; all others are reproducible."""


class Command:
    """One `asyncrl` command as a process in a session of its own."""

    def __init__(self, arguments: Sequence[str], output: Path) -> None:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # The tests are a shell's background job, whose children do not hear Ctrl-C: this one is to hear it.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._file = output.open("ab")
        self.output = output
        self.process = subprocess.Popen(
            [sys.executable, "-m", "asyncrl", *arguments],
            cwd=ROOT,
            stdout=self._file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", STARTER: str(os.getpid())},  # tests that are killed leave none
        )

    def kill(self) -> None:
        """kill -9 of the command; its children die with it."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """SIGTERM, and its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self, deadline_s: float = DEADLINE_S) -> int:
        """Its exit code, once it ends by itself."""
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {deadline_s} s:\n{self.text()[-4000:]}") from None

    def until(self, what: str, happened: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
        """Return when `happened`; fail when the process ends first, or at the deadline."""
        for _ in range(int(deadline_s / LOOK_S)):
            if happened():
                return
            try:
                code = self.process.wait(LOOK_S)
            except subprocess.TimeoutExpired:
                continue
            if not happened():
                raise AssertionError(f"ended with {code} before {what}:\n{self.text()[-4000:]}")
            return
        raise AssertionError(f"{deadline_s} s without {what}:\n{self.text()[-4000:]}")

    def text(self) -> str:
        """What it printed so far."""
        return self.output.read_text(errors="replace")

    def close(self) -> None:
        """End it if it still runs."""
        if self.process.poll() is None:
            self.kill()
        self._file.close()


def metric_lines(run_dir: Path) -> list[dict[str, Any]]:
    """The complete lines of a run's metrics.jsonl."""
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1] if line]


def last_step(run_dir: Path) -> int:
    """The newest training step of a run, 0 before the first."""
    return max((int(line["step"]) for line in metric_lines(run_dir)), default=0)


def without_clock(line: dict[str, Any]) -> dict[str, Any]:
    """The metrics that must be equal in two runs of equal seeds."""
    return {name: value for name, value in line.items() if not name.startswith(CLOCK)}


def summary(run_dir: Path) -> dict[str, object]:
    """What a finished run left."""
    return dict(json.loads((run_dir / "summary.json").read_text()))
