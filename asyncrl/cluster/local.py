"""Processes on this machine.

A child runs `python -m asyncrl.run ROLE ...`, writes its output to a log file, and leaves a one-line reason beside the
log when it fails, which the parent shows. It dies with its parent: an orphan would go on holding devices and claims.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from asyncrl import waits
from asyncrl.cluster.base import Children, ClusterSetup, Failure, Seat, Wanted
from asyncrl.cluster.ports import ReservedPort
from asyncrl.cluster.process import LOG, PARENT, reason_file
from asyncrl.placement import Placement, place

LOOPBACK = "127.0.0.1"


class LocalChild:
    """A process of this machine."""

    def __init__(self, role: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.role, self.log, self._process = role, log, process

    @property
    def pid(self) -> int:
        """Process id; the process may have ended."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """See Child."""
        return self._process.poll()

    def failure(self) -> Failure | None:
        """See Child."""
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
        """See Child."""
        if self.exit_code() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def ended(self, timeout_s: float, name: str) -> bool:
        """See Child."""
        with waits.timed(name, lambda: f"{self.role} (pid {self.pid}) is stopping"):
            try:
                await waits.in_thread(self._process.wait, timeout_s)
            except subprocess.TimeoutExpired:
                return False
        return True


class LocalCluster(Children):
    """Plain processes on this machine; the default, since it starts in a moment and needs nothing else."""

    def __init__(self, log_dir: Path, env: Mapping[str, str], *, stop_timeout_s: float, num_devices: int = 0) -> None:
        super().__init__(stop_timeout_s)
        self._log_dir, self._env, self._num_devices = log_dir, dict(env), num_devices
        self._meeting: ReservedPort | None = None

    async def place(self, wanted: Wanted) -> Placement:
        """See Cluster."""
        return place(
            ranks=wanted.ranks,
            servers=wanted.servers,
            tp=wanted.tp,
            num_devices=self._num_devices,
            shares_devices=wanted.shares_devices,
        )

    async def meeting_point(self, seat: Seat) -> tuple[str, int]:
        """See Cluster."""
        if self._meeting is not None:
            self._meeting.close()
        self._meeting = ReservedPort(LOOPBACK)
        return LOOPBACK, self._meeting.number

    def machines(self) -> tuple[str, ...]:
        """See Cluster."""
        return (LOOPBACK,)

    def start(
        self, role: str, name: str, arguments: Sequence[str], env: Mapping[str, str] | None = None, *, seat: Seat
    ) -> LocalChild:
        """See Cluster. Must be called from the main thread: the kernel ties a child's life to the thread that started
        it."""
        self._log_dir.mkdir(parents=True, exist_ok=True)
        devices = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, seat.devices))}
        child_env = {**os.environ, **self._env, **devices, **(env or {})}
        child = start_child(role, name, arguments, child_env, self._log_dir / f"{name}.log")
        self.children.append(child)
        return child


def start_child(
    role: str, name: str, arguments: Sequence[str], env: Mapping[str, str], log: Path, *, cwd: str | None = None
) -> LocalChild:
    """Start a role with exactly this environment, as a child that dies with this process."""
    reason_file(log).unlink(missing_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "asyncrl.run", role, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**env, PARENT: str(os.getpid()), LOG: str(log)},
            cwd=cwd,
            start_new_session=True,  # a Ctrl-C at the terminal reaches the parent only, which stops them in order
        )
    return LocalChild(name, process, log)


def open_cluster(setup: ClusterSetup) -> LocalCluster:
    """The cluster of this machine."""
    return LocalCluster(
        setup.log_dir,
        setup.env,
        stop_timeout_s=setup.config.stop_timeout_s,
        num_devices=setup.num_devices,
    )
