"""What starts, watches and stops the processes of a run: the seam between a supervisor and where processes run."""

import asyncio
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from asyncrl.config import ClusterConfig
from asyncrl.placement import Placement


@dataclass(frozen=True)
class Failure:
    """Why a child ended: its exit code and the message it left, or the signal that ended it."""

    role: str
    exit_code: int
    message: str


@dataclass(frozen=True)
class Wanted:
    """How many processes a command starts, by what they compute with.

    Attributes:
        ranks: trainer ranks, a device each.
        servers: servers of the policy, then of teachers, `tp` devices each.
        workers: rollout workers, without a device.
        shares_devices: servers use the ranks' devices, in turns.
    """

    ranks: int = 0
    servers: int = 0
    tp: int = 1
    workers: int = 0
    shares_devices: bool = False


@dataclass(frozen=True)
class Seat:
    """The place of one process: which of the wanted it is.

    Attributes:
        devices: its devices by index, where they are known beforehand; () on the CPU, and where whoever has the
            machine gives them out.
    """

    kind: Literal["ranks", "servers", "workers"]
    index: int
    devices: tuple[int, ...] = ()


class Child(Protocol):
    """One process of a role, with its log. LocalChild, RemoteChild."""

    role: str
    log: Path

    def exit_code(self) -> int | None:
        """Exit code, negative for a signal, None while it runs. Does not block."""
        ...

    def failure(self) -> Failure | None:
        """Why it ended if it ended badly, else None."""
        ...

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs. Does not block."""
        ...

    async def ended(self, timeout_s: float, name: str) -> bool:
        """Wait up to `timeout_s` for the process to end; the wait is counted under `name`."""
        ...


class Cluster(Protocol):
    """Where processes are started. LocalCluster, RemoteCluster; held to tests/contract/test_cluster.py."""

    children: list[Child]

    async def place(self, wanted: Wanted) -> Placement:
        """Make sure that there is room for all of them, and say which devices each has. Once, before any `start`.

        Raises:
            PreflightError: this machine does not have the devices.
            WaitTimeout: other machines did not have room within cluster.placement_timeout_s.
        """
        ...

    async def meeting_point(self, seat: Seat) -> tuple[str, int]:
        """Address and a free TCP port of the machine on which a process at `seat` is started next."""
        ...

    def machines(self) -> tuple[str, ...]:
        """Addresses of the machines that processes may be on; one, if all are on this one."""
        ...

    def start(
        self, role: str, name: str, arguments: Sequence[str], env: Mapping[str, str] | None = None, *, seat: Seat
    ) -> Child:
        """Start `python -m asyncrl.run ROLE ARGUMENTS`, with its output in `<log_dir>/<name>.log`."""
        ...

    def forget(self, child: Child) -> None:
        """Stop watching a child that ended."""
        ...

    async def stop(self, children: Sequence[Child] | None = None, *, timeout_s: float | None = None) -> None:
        """Ask the given children (all by default) to stop, wait for them together, kill those that do not.

        Args:
            timeout_s: that they have; None: cluster.stop_timeout_s.
        """
        ...

    def kill(self) -> None:
        """End every child at once."""
        ...


@dataclass(frozen=True)
class ClusterSetup:
    """What a cluster is opened with.

    Attributes:
        run: name of the run, for people who look at the cluster.
        log_dir: where children's logs and reasons go.
        env: environment of every child beside the machine's own; may hold secrets, so it is never shown.
        num_devices: accelerators of this machine.
        device: `trainer.device`.
    """

    run: str
    log_dir: Path
    env: Mapping[str, str]
    config: ClusterConfig
    num_devices: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"


class Children:
    """The children that a cluster started, and the order in which they are stopped."""

    def __init__(self, stop_timeout_s: float) -> None:
        self._stop_timeout_s = stop_timeout_s
        self.children: list[Child] = []

    def forget(self, child: Child) -> None:
        """See Cluster."""
        self.children.remove(child)

    async def stop(self, children: Sequence[Child] | None = None, *, timeout_s: float | None = None) -> None:
        """See Cluster."""
        stopping = list(self.children if children is None else children)
        for child in stopping:
            child.send(signal.SIGTERM)
        await asyncio.gather(*(self._end(child, timeout_s or self._stop_timeout_s) for child in stopping))
        for child in stopping:
            self.forget(child)

    async def _end(self, child: Child, timeout_s: float) -> None:
        if not await child.ended(timeout_s, f"waiting for {child.role} to stop"):
            child.send(signal.SIGKILL)
            await child.ended(self._stop_timeout_s, f"waiting for {child.role} to die")

    def kill(self) -> None:
        """See Cluster."""
        for child in self.children:
            child.send(signal.SIGKILL)
