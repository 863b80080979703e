"""Processes on this machine.

A child runs `python -m asyncrl.run ROLE ...`, writes its output to a log file, and leaves a one-line reason beside the
log when it fails, which the parent shows. It dies with its parent: an orphan would go on holding devices and claims.
One that gives no sign of life for long is killed.
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
from asyncrl.cluster.pulse import PULSE, Pulse
from asyncrl.placement import Placement, place

LOOPBACK = "127.0.0.1"


class LocalChild:
    """A process of this machine. It is killed at a look that finds it silent for `hang_timeout_s`."""

    def __init__(
        self, role: str, process: subprocess.Popen[bytes], log: Path, pulse: Pulse, *, hang_timeout_s: float
    ) -> None:
        self.role, self.log, self._process = role, log, process
        self._pulse, self._hang_timeout_s, self._hangs = pulse, hang_timeout_s, ""

    @property
    def pid(self) -> int:
        """Process id; the process may have ended."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """See Child. One that was killed because it hung has ended, also while a driver still holds it."""
        code = self._process.poll()
        if code is not None:
            self._pulse.close()
        elif not self._hangs and (silent_s := self._pulse.silent_s()) >= self._hang_timeout_s:
            self._hangs = (
                f"{self.role} (pid {self.pid}) hangs: no sign of life for {silent_s:.0f} s, cluster.hang_timeout_s; "
                f"it was killed, its log is {self.log}"
            )
            self._process.kill()
        return -signal.SIGKILL if self._hangs else code

    def failure(self) -> Failure | None:
        """See Child."""
        code = self.exit_code()
        if code is None or code == 0:
            return None
        if self._hangs:
            return Failure(self.role, code, self._hangs)
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

    def __init__(
        self,
        log_dir: Path,
        env: Mapping[str, str],
        *,
        stop_timeout_s: float,
        hang_timeout_s: float = 300.0,
        num_devices: int = 0,
    ) -> None:
        super().__init__(stop_timeout_s)
        self._log_dir, self._env, self._num_devices = log_dir, dict(env), num_devices
        self._hang_timeout_s = hang_timeout_s
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
        log = self._log_dir / f"{name}.log"
        child = start_child(role, name, arguments, child_env, log, hang_timeout_s=self._hang_timeout_s)
        self.children.append(child)
        return child


def start_child(
    role: str,
    name: str,
    arguments: Sequence[str],
    env: Mapping[str, str],
    log: Path,
    *,
    hang_timeout_s: float,
    cwd: str | None = None,
) -> LocalChild:
    """Start a role with exactly this environment, as a child that dies with this process."""
    reason_file(log).unlink(missing_ok=True)
    pulse = Pulse()
    try:
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "asyncrl.run", role, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**env, PARENT: str(os.getpid()), LOG: str(log), PULSE: str(pulse.theirs)},
                cwd=cwd,
                start_new_session=True,  # a Ctrl-C at the terminal reaches the parent only, which stops them in order
                pass_fds=(pulse.theirs,),
            )
    finally:
        pulse.handed_over()
    return LocalChild(name, process, log, pulse, hang_timeout_s=hang_timeout_s)


def open_cluster(setup: ClusterSetup) -> LocalCluster:
    """The cluster of this machine."""
    return LocalCluster(
        setup.log_dir,
        setup.env,
        stop_timeout_s=setup.config.stop_timeout_s,
        hang_timeout_s=setup.config.hang_timeout_s,
        num_devices=setup.num_devices,
    )
