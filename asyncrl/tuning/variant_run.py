"""Train one variant of a sweep by the commands that a user types, in processes of their own, and keep what it printed.

A variant that has finished is not run again; one that was interrupted goes on from its newest checkpoint. Commands stop
in good order when this process ends, however it ends.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asyncrl.cluster import STARTER
from asyncrl.errors import AsyncrlError
from asyncrl.tuning.variants import Variant

OUTCOME, SUMMARY, METRICS = "outcome.json", "summary.json", "metrics.jsonl"
STOP_S = 90.0
"""Seconds that a command gets to end when it is asked to, before it is killed."""
SHOWN = 2000


class VariantFailed(AsyncrlError):
    """A command of a variant ended with an error, or took too long; the message has the end of what it printed."""


@dataclass(frozen=True)
class Launch:
    """What all variants have in common.

    Attributes:
        config: the file.
        root: holds a directory for each variant.
        mode: row of the table of modes, None for the file's.
        deadline_s: seconds that one variant may take.
    """

    config: Path
    root: Path
    mode: str | None
    deadline_s: float

    def directory(self, variant: Variant) -> Path:
        """Where the variant's run lies."""
        return self.root / variant.name

    def overrides(self, variant: Variant) -> list[str]:
        """Of its commands."""
        mode = [f"mode={self.mode}"] if self.mode else []
        return [*variant.overrides, *mode, f"run.dir={self.directory(variant)}", f"run.name={variant.name}"]


def is_finished(directory: Path) -> bool:
    """Whether a variant's run came to its end, with its summary."""
    try:
        reason = json.loads((directory / OUTCOME).read_text())["reason"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return reason == "finished" and (directory / SUMMARY).exists()


class Runs:
    """Runs variants, one in each thread that asks for it; the thread has to live as long: see stop_with_starter."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def stop(self) -> None:
        """Ask every command to end in good order, and start none any more; from any thread."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.terminate()

    def train(self, variant: Variant, *, shares_gpus: bool) -> None:
        """Run one to its end; it returns when both clusters have ended.

        Args:
            shares_gpus: `train` starts the rollout side too.
        Raises:
            VariantFailed: see there. What it has done stays for a resume.
        """
        directory = self._launch.directory(variant)
        directory.mkdir(parents=True, exist_ok=True)
        arguments = [str(self._launch.config), *self._launch.overrides(variant)]
        resumes = ["--resume"] if (directory / METRICS).exists() else []
        commands = {"train": ["train", *arguments, *resumes]}
        if not shares_gpus:
            commands["serve-rollout"] = ["serve-rollout", *arguments]
        processes: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for name, command in commands.items():
                processes[name] = self._start(command, directory / f"{name}.out")
            for name, process in processes.items():
                _wait(name, process, directory / f"{name}.out", self._launch.deadline_s)
        finally:
            for process in processes.values():
                _end(process)
            with self._lock:
                self._running.difference_update(processes.values())

    def _start(self, arguments: Sequence[str], output: Path) -> subprocess.Popen[bytes]:
        with self._lock, output.open("ab") as file:
            if self._stopped:
                raise VariantFailed("the sweep was stopped before it; run the sweep again to go on.")
            process = subprocess.Popen(
                [sys.executable, "-m", "asyncrl", *arguments],
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={"OMP_NUM_THREADS": "1", **os.environ, STARTER: str(os.getpid())},
                # A Ctrl-C is for the sweep to hand on: a second signal would not let a command end in good order.
                start_new_session=True,
            )
            self._running.add(process)
            return process


def _wait(name: str, process: subprocess.Popen[bytes], output: Path, deadline_s: float) -> None:
    try:
        code = process.wait(deadline_s)
    except subprocess.TimeoutExpired:
        raise VariantFailed(
            f"{name} did not end within {deadline_s:g} s (--deadline-s) and is stopped; run the sweep again to go on "
            f"with it. {_end_of(output)}"
        ) from None
    if code != 0:
        raise VariantFailed(f"{name} ended with exit code {code}. {_end_of(output)}")


def _end_of(output: Path) -> str:
    text = output.read_text(errors="replace")[-SHOWN:].strip()
    return f"The end of {output}:\n{text}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop a command that still runs, in good order if it answers."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
