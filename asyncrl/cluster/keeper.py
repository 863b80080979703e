"""What runs on a machine of a cluster for its supervisor elsewhere: it starts the processes of one bundle there.

They are processes of their own and not threads or calls of whatever runs the keeper: a role wants a main thread for its
signals, ends with an exit code, may be killed alone, and must not take its keeper with it when it crashes. They die
with the keeper, and so with the supervisor, who has it ended.
"""

import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from asyncrl.cluster.local import LocalChild, start_child
from asyncrl.cluster.ports import ReservedPort
from asyncrl.errors import PreflightError

DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Proof:
    """A file that the supervisor wrote into the run directory: who reads the token there sees the same directory."""

    path: str
    token: str


@dataclass(frozen=True)
class Order:
    """A process to start.

    Attributes:
        env: declared for it, beside the machine's own. May hold secrets.
        cwd: directory of the supervisor, which the process is started in where it exists.
        log: path in the run directory.
        first_device, num_devices: of the keeper's devices.
        hang_timeout_s: see ClusterConfig.
    """

    role: str
    name: str
    arguments: tuple[str, ...]
    env: dict[str, str] = field(repr=False)
    cwd: str
    log: str
    proof: Proof
    first_device: int
    num_devices: int
    hang_timeout_s: float


class Keeper:
    """Starts, signals and watches the processes of one bundle. Its methods are short: one call at a time."""

    def __init__(self, where: str = "") -> None:
        """`where`: the machine in the cluster's own words, for logs."""
        self._where = where
        self._children: dict[str, LocalChild] = {}
        self._refused: dict[str, tuple[int, str]] = {}
        self._port: ReservedPort | None = None
        self._has_ended = False

    def free_port(self, address: str) -> int:
        """A TCP port of this machine's `address`, kept for the processes started next until the next is asked for."""
        if self._port is not None:
            self._port.close()
        self._port = ReservedPort(address)
        return self._port.number

    def start(self, order: Order) -> None:
        """Start a process; why it could not be started is what `poll` answers."""
        self._refused.pop(order.name, None)
        try:
            child = self._children[order.name] = _start(order, self._where)
            if self._has_ended:  # meanwhile
                child.send(signal.SIGKILL)
        except PreflightError as error:
            self._refused[order.name] = (error.exit_code, str(error))

    def poll(self, name: str) -> tuple[int, str] | None:
        """Exit code and reason ("" if there is none) of a process that ended, None while it runs."""
        if name in self._refused:
            return self._refused[name]
        child = self._children.get(name)
        if child is None:
            return 1, f"{name} was not started: its order did not arrive at {socket.gethostname()}"
        code = child.exit_code()
        if code is None:
            return None
        failure = child.failure()
        return code, failure.message if failure is not None else ""

    def send(self, name: str, number: int) -> None:
        """Send a signal to a process, if it runs."""
        if name in self._children:
            self._children[name].send(signal.Signals(number))

    def end(self) -> None:
        """End every process at once, and start none any more. From any thread."""
        self._has_ended = True
        for child in list(self._children.values()):
            child.send(signal.SIGKILL)


def _start(order: Order, where: str) -> LocalChild:
    _require_shared(order.proof)
    devices = ",".join(_own_devices(order))
    env = {**os.environ, **order.env, DEVICES: devices}
    env.pop("RAY_AUTH_TOKEN", None)  # whoever has it can run code on every machine; rewards are somebody's code
    log = Path(order.log)
    with log.open("a") as file:
        file.write(
            f"asyncrl: {order.name} on {socket.gethostname()}{where and ', '}{where}, devices {devices or '-'}\n"
        )
    cwd = order.cwd if Path(order.cwd).is_dir() else None
    return start_child(order.role, order.name, order.arguments, env, log, hang_timeout_s=order.hang_timeout_s, cwd=cwd)


def _require_shared(proof: Proof) -> None:
    try:
        found = Path(proof.path).read_text()
    except OSError as error:
        found = str(error)
    if found != proof.token:
        raise PreflightError(
            f"{socket.gethostname()} does not see the run directory: {proof.path}, written by the command, reads there "
            f"as {found[:200]!r}. Logs, checkpoints and the handed-over configuration live in it: set run.dir to a "
            "folder that all machines of the cluster share."
        )


def _own_devices(order: Order) -> Sequence[str]:
    if order.num_devices == 0:
        return ()
    given = [device for device in os.environ.get(DEVICES, "").split(",") if device]
    own = given[order.first_device : order.first_device + order.num_devices]
    if len(own) < order.num_devices:
        raise PreflightError(
            f"{order.name} needs {order.num_devices} devices from number {order.first_device} on, and the cluster gave "
            f"its place on {socket.gethostname()} {DEVICES}={','.join(given)!r}. Check the number of GPUs that this "
            "machine offers the cluster."
        )
    return own
