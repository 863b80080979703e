"""Start, watch and stop processes by role on this machine.

A child runs `python -m asyncrl.run ROLE ...`, writes its output to a log file, and leaves a one-line reason beside the
log when it fails, which the parent shows. It dies with its parent: an orphan would go on holding devices and claims.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from asyncrl import waits

PR_SET_PDEATHSIG = 1
PARENT = "ASYNCRL_PARENT_PID"
LOG = "ASYNCRL_LOG"


@dataclass(frozen=True)
class Failure:
    """Why a child ended: its exit code and the message it left, or the signal that ended it."""

    role: str
    exit_code: int
    message: str


class Child:
    """One process of a role, with its log and the reason it left behind."""

    def __init__(self, role: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.role, self.log, self._process = role, log, process

    @property
    def pid(self) -> int:
        """Process id; the process may have ended."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Exit code, negative for a signal, None while it runs."""
        return self._process.poll()

    def failure(self) -> Failure | None:
        """Why it ended if it ended badly, else None."""
        code = self.exit_code()
        if code is None or code == 0:
            return None
        reason = reason_file(self.log)
        with contextlib.suppress(OSError, ValueError):
            left = json.loads(reason.read_text())
            return Failure(self.role, code, str(left["message"]))
        what = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return Failure(self.role, code, f"{self.role} {what} without a reason; its log is {self.log}")

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.exit_code() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def ended(self, timeout_s: float, name: str) -> bool:
        """Wait up to `timeout_s` for the process to end; the wait is counted under `name`."""
        with waits.timed(name, lambda: f"{self.role} (pid {self.pid}) is stopping"):
            try:
                await waits.in_thread(self._process.wait, timeout_s)
            except subprocess.TimeoutExpired:
                return False
        return True


def reason_file(log: Path) -> Path:
    """Where a failing child writes its reason, beside its log."""
    return log.with_suffix(".error.json")


class LocalCluster:
    """Plain processes on this machine; the default, since it starts in a moment and needs nothing else."""

    def __init__(self, log_dir: Path, env: Mapping[str, str], *, stop_timeout_s: float) -> None:
        self._log_dir, self._env, self._stop_timeout_s = log_dir, dict(env), stop_timeout_s
        self.children: list[Child] = []

    def start(self, role: str, name: str, arguments: Sequence[str], env: Mapping[str, str] | None = None) -> Child:
        """Start `python -m asyncrl.run ROLE ARGUMENTS`, logging to `<log_dir>/<name>.log`.

        Must be called from the main thread: the kernel ties a child's life to the thread that started it.
        """
        self._log_dir.mkdir(parents=True, exist_ok=True)
        log = self._log_dir / f"{name}.log"
        reason_file(log).unlink(missing_ok=True)
        child_env = {**os.environ, **self._env, **(env or {}), PARENT: str(os.getpid()), LOG: str(log)}
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "asyncrl.run", role, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=child_env,
                start_new_session=True,  # a Ctrl-C at the terminal reaches the parent only, which stops them in order
            )
        child = Child(name, process, log)
        self.children.append(child)
        return child

    def forget(self, child: Child) -> None:
        """Stop watching a child that ended."""
        self.children.remove(child)

    async def stop(self, children: Sequence[Child] | None = None) -> None:
        """Ask the given children (all by default) to stop, wait for them together, kill those that do not."""
        stopping = list(self.children if children is None else children)
        for child in stopping:
            child.send(signal.SIGTERM)
        await asyncio.gather(*(self._end(child) for child in stopping))
        for child in stopping:
            self.forget(child)

    async def _end(self, child: Child) -> None:
        if not await child.ended(self._stop_timeout_s, f"waiting for {child.role} to stop"):
            child.send(signal.SIGKILL)
            await child.ended(self._stop_timeout_s, f"waiting for {child.role} to die")

    def kill(self) -> None:
        """End every child at once."""
        for child in self.children:
            child.send(signal.SIGKILL)


CLUSTERS = {"local": LocalCluster}
"""`cluster.backend` -> what starts processes."""


def die_with_parent() -> None:
    """Make the kernel end this process when its parent ends, however that ends. Call first thing in a child."""
    parent = os.environ.get(PARENT)
    if parent is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):  # it ended before the call above
        sys.exit(f"asyncrl: parent process {parent} has ended")


def leave_reason(message: str, exit_code: int) -> None:
    """Write why this child fails, for its parent to show; nothing when it was not started by one."""
    log = os.environ.get(LOG)
    if log is not None:
        reason_file(Path(log)).write_text(json.dumps({"message": message, "exit_code": exit_code}))
