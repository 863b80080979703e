"""Processes on the machines of a cluster, each started by a keeper there: what a supervisor does about them.

What the machines are is behind the Protocol `Machines`, so that this is tested without them.
"""

import os
import secrets
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

from asyncrl import waits
from asyncrl.cluster.base import Children, Failure, Launch, Seat, Wanted
from asyncrl.cluster.bundles import BundleGroup, Plan, Spot
from asyncrl.cluster.keeper import Order, Proof
from asyncrl.errors import WaitTimeout
from asyncrl.placement import Placement

LOOK_S = 0.1  # between two looks at a process that was asked to stop
PLACING = "cluster waits for room for its processes"


class KeeperLost(Exception):
    """A keeper ended, or its machine did; the message says what is known. What it started is gone with it."""


class Unanswered(Exception):
    """There is no answer yet."""


class CallLost(Unanswered):
    """Nor will there be one to this call; the keeper may still be there, so it is made again."""


class Machines(Protocol):
    """Machines of which parts are reserved and used through keepers. RayMachines. No method blocks for long.

    A keeper and a call are whatever the implementation makes of them.
    """

    def addresses(self) -> tuple[str, ...]:
        """Of the living machines, each once."""
        ...

    def num_devices(self) -> int:
        """Accelerators of all living machines."""
        ...

    def reserve(self, groups: Sequence[BundleGroup]) -> None:
        """Ask for these bundles, in place of those asked for before."""
        ...

    def lacking(self) -> str | None:
        """Why not every bundle has its place on a living machine, in words; None if every one has."""
        ...

    def address_of(self, group: str, bundle: int) -> str:
        """Address of the machine that a placed bundle is on."""
        ...

    def keeper(self, group: str, bundle: int) -> Any:  # Any: the implementation's
        """A new keeper in a bundle; it comes up when the bundle has its place."""
        ...

    def call(self, keeper: Any, method: str, *arguments: Any) -> Any:
        """Call a method of a keeper; calls arrive in their order."""
        ...

    def answer(self, call: Any) -> Any:
        """What a call returned.

        Raises:
            Unanswered, CallLost, KeeperLost: see there.
        """
        ...

    def close(self) -> None:
        """End every keeper, with what it started, and give back what was reserved. Repeating is harmless."""
        ...


class RemoteChild:
    """A process that a keeper started.

    Args:
        call: calls a method of the keeper.
        answer: see Machines.
        lost: told when the keeper is gone.
    """

    def __init__(
        self,
        role: str,
        log: Path,
        call: Callable[..., Any],
        answer: Callable[[Any], Any],
        lost: Callable[[], None],
        *,
        start_timeout_s: float,
        silence_timeout_s: float,
    ) -> None:
        self.role, self.log = role, log
        self._call, self._answer, self._lost = call, answer, lost
        self._patience_s, self._silence_timeout_s = start_timeout_s, silence_timeout_s
        self._is_up = False
        self._end: tuple[int, str] | None = None
        self._ask()

    def _ask(self) -> None:
        self._asked = self._call("poll", self.role)
        self._asked_s = time.monotonic()

    def exit_code(self) -> int | None:
        """See Child. A process whose machine is lost counts as ended by SIGKILL."""
        if self._end is None:
            self._look()
        return None if self._end is None else self._end[0]

    def _look(self) -> None:
        try:
            ended = self._answer(self._asked)
        except Unanswered as error:
            if isinstance(error, CallLost):
                self._asked = self._call("poll", self.role)
            self._despair(time.monotonic() - self._asked_s)
        except KeeperLost as error:
            self._end = (-signal.SIGKILL, f"{self.role} is lost with what started it: {error}; its log is {self.log}")
            self._lost()
        else:
            self._is_up, self._patience_s = True, self._silence_timeout_s
            if ended is None:
                self._ask()
            else:
                self._end = ended

    def _despair(self, silent_s: float) -> None:
        if silent_s < self._patience_s:
            return
        if self._is_up:
            why = f"{self.role} is lost: its machine has not answered for {silent_s:.0f} s; its log is {self.log}"
            self._end = (-signal.SIGKILL, why)
        else:
            late = WaitTimeout(PLACING, silent_s, self._patience_s, f"{self.role} was not started")
            self._end = (late.exit_code, str(late))
        self._lost()

    def failure(self) -> Failure | None:
        """See Child."""
        self.exit_code()
        if self._end is None or self._end[0] == 0:
            return None
        return Failure(self.role, *self._end)

    def send(self, number: signal.Signals) -> None:
        """See Child."""
        if self.exit_code() is None:
            self._call("send", self.role, int(number))

    async def ended(self, timeout_s: float, name: str) -> bool:
        """See Child."""
        deadline_s = time.monotonic() + timeout_s
        while self.exit_code() is None:
            if time.monotonic() >= deadline_s:
                return False
            await waits.pause(name, LOOK_S)
        return True


class RemoteCluster(Children):
    """Processes by role on the machines of a cluster.

    A keeper lives as long as its bundle: a process that is started again has the same one, or a new one if that
    is lost.
    """

    def __init__(self, launch: Launch, machines: Machines) -> None:
        super().__init__(launch.config.stop_timeout_s)
        self._launch, self._machines, self._config = launch, machines, launch.config
        self._keepers: dict[tuple[str, int], Any] = {}
        self._plan = Plan(Wanted(), threads=launch.config.threads, on_devices=False)
        self._proof = Proof(str((launch.log_dir / f".shared-{secrets.token_hex(4)}").absolute()), secrets.token_hex(16))

    async def place(self, wanted: Wanted) -> Placement:
        """See Cluster. The devices are not known here: each keeper gives its own to what it starts."""
        on_devices = self._launch.device == "cuda" or self._machines.num_devices() > 0
        self._plan = Plan(wanted, self._config.threads, on_devices, ranks_on_cpu=self._launch.device == "cpu")
        self._leave_proof()
        self._machines.reserve(self._plan.groups())
        await self._placed()
        return Placement(ranks=((),) * wanted.ranks, servers=((),) * wanted.servers)

    def _leave_proof(self) -> None:
        self._launch.log_dir.mkdir(parents=True, exist_ok=True)
        Path(self._proof.path).write_text(self._proof.token)

    async def _placed(self) -> None:
        await waits.until(
            PLACING,
            lambda: True if self._machines.lacking() is None else None,
            why=lambda: (
                f"{self._machines.lacking()}. Add machines, or ask for less: trainer.parallel, "
                "inference.servers, inference.tp, rollout.workers, cluster.threads"
            ),
            deadline_s=self._config.placement_timeout_s,
        )

    async def meeting_point(self, seat: Seat) -> tuple[str, int]:
        """See Cluster. Waits until lost bundles have a place again."""
        await self._placed()
        spot = self._plan.spot(seat)
        address = self._machines.address_of(spot.group, spot.bundle)
        asked = [self._machines.call(self._keeper(spot), "free_port", address)]

        def port() -> int | None:
            try:
                return int(self._machines.answer(asked[0]))
            except (CallLost, KeeperLost) as error:
                if isinstance(error, KeeperLost):
                    self._forget_keeper(spot, self._keepers.get((spot.group, spot.bundle)))
                asked[0] = self._machines.call(self._keeper(spot), "free_port", address)
                return None
            except Unanswered:
                return None

        found = await waits.until(
            PLACING,
            port,
            why=lambda: f"the process that starts {seat.kind} {seat.index} on {address} does not answer",
            deadline_s=self._config.placement_timeout_s,
            recheck_s=LOOK_S,
        )
        return address, found

    def machines(self) -> tuple[str, ...]:
        """See Cluster."""
        return self._machines.addresses()

    def start(
        self, role: str, name: str, arguments: Sequence[str], env: Mapping[str, str] | None = None, *, seat: Seat
    ) -> RemoteChild:
        """See Cluster. Returns before the process is there."""
        spot, log = self._plan.spot(seat), self._launch.log_dir.absolute() / f"{name}.log"
        order = Order(
            role=role,
            name=name,
            arguments=tuple(arguments),
            env={**passed_on(os.environ, self._config.pass_env), **self._launch.env, **(env or {})},
            cwd=str(Path.cwd()),
            log=str(log),
            proof=self._proof,
            first_device=spot.first_device,
            num_devices=spot.num_devices,
        )
        keeper = self._keeper(spot)
        self._machines.call(keeper, "start", order)
        child = RemoteChild(
            name,
            log,
            lambda method, *arguments: self._machines.call(keeper, method, *arguments),
            self._machines.answer,
            lambda: self._forget_keeper(spot, keeper),
            start_timeout_s=self._config.placement_timeout_s,
            silence_timeout_s=self._config.silence_timeout_s,
        )
        self.children.append(child)
        return child

    def _keeper(self, spot: Spot) -> Any:
        key = (spot.group, spot.bundle)
        if key not in self._keepers:
            self._keepers[key] = self._machines.keeper(*key)
        return self._keepers[key]

    def _forget_keeper(self, spot: Spot, keeper: Any) -> None:
        if self._keepers.get((spot.group, spot.bundle)) is keeper:
            del self._keepers[spot.group, spot.bundle]

    def kill(self) -> None:
        """See Cluster."""
        self._machines.close()
        Path(self._proof.path).unlink(missing_ok=True)


def passed_on(environment: Mapping[str, str], patterns: Sequence[str]) -> dict[str, str]:
    """What children elsewhere are given of the supervisor's environment: declared names only, since the rest may hold
    secrets of others, and belongs to this machine."""
    return {
        name: value for name, value in environment.items() if any(fnmatchcase(name, pattern) for pattern in patterns)
    }
