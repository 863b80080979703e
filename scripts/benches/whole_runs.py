"""Run whole training runs as the commands that a user types, for benchmarks to compare."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.cluster import STARTER

ROOT = Path(__file__).resolve().parents[2]
CONFIG = "configs/tiny_cpu.yaml"
DEADLINE_S = 1200.0
PATIENCE_S = 30.0
"""For commands that are stopped early: they end their servers and their Redis in it."""


@dataclass(frozen=True)
class Run:
    """What a finished run left: its lines of metrics and its summary."""

    lines: list[dict[str, Any]]
    summary: dict[str, Any]

    def step_times_s(self) -> dict[int, float]:
        """Step -> seconds since the epoch at which its line was written."""
        return {int(line["step"]): float(line["time_s"]) for line in self.lines if "actor/pg_loss" in line}

    def seconds(self) -> float:
        """Seconds from the first held-out score, after which training starts, to the last step."""
        return max(self.step_times_s().values()) - float(self.lines[0]["time_s"])

    def scores(self) -> list[tuple[float, float]]:
        """(seconds since training started, held-out score) in order of time."""
        found = []
        for line in self.lines:
            scores = [value for name, value in line.items() if name.startswith("val/test_score/")]
            if scores:
                found.append((float(line["time_s"]) - float(self.lines[0]["time_s"]), float(scores[0])))
        return found

    def seconds_to(self, score: float) -> float | None:
        """Seconds until a held-out score of at least `score`, None if it was never reached."""
        return next((at_s for at_s, found in self.scores() if found >= score), None)


def run(
    mode: str,
    directory: Path,
    overrides: Sequence[str],
    env: dict[str, str] | None = None,
    *,
    config: str = CONFIG,
    cores: Mapping[str, int] | None = None,
) -> Run:
    """Train once; in separate_async the rollout cluster is a command of its own.

    Args:
        cores: command (train, serve-rollout) -> the core that it and its children stay on; None: any.
    Raises:
        RuntimeError: a command failed; the message has the end of what it printed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    keys = [config, f"run.dir={directory}", f"run.name={directory.name}", "metrics.sinks=[]", *overrides]
    rollout, cores = None, cores or {}
    if mode == "separate_async":
        rollout = _start(["serve-rollout", *keys], directory / "serve-rollout.out", env, cores.get("serve-rollout"))
    trainer = _start(["train", *keys, "--mode", mode], directory / "train.out", env, cores.get("train"))
    try:
        for name, process in (("train", trainer), ("serve-rollout", rollout)):
            if process is not None and process.wait(DEADLINE_S) != 0:
                raise RuntimeError(f"{name} failed: {(directory / f'{name}.out').read_text()[-2000:]}")
    finally:
        end([process for process in (trainer, rollout) if process is not None])
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return Run(lines, json.loads((directory / "summary.json").read_text()))


def end(processes: Sequence[subprocess.Popen[bytes]], patience_s: float = PATIENCE_S) -> None:
    """Stop those that still run, in order if they do so in time: a killed command leaves its Redis to a reaper.

    Args:
        patience_s: for all of them together, before they are killed.
    """
    deadline_s = time.monotonic() + patience_s
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(max(deadline_s - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _start(arguments: list[str], output: Path, env: dict[str, str] | None, core: int | None) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "asyncrl", *arguments],
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(env or {}), STARTER: str(os.getpid())},
            preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
        )
