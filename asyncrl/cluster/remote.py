"""Processes on the machines of a cluster, each started by a keeper there: what a supervisor does about them.

What the machines are is behind the Protocol `Machines`, so that this is tested without them.
"""

import os
import secrets
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from asyncrl import waits
from asyncrl.cluster.base import Children, ClusterSetup, Seat, Wanted
from asyncrl.cluster.bundles import Plan, Spot
from asyncrl.cluster.keeper import Order, Proof
from asyncrl.cluster.machines import CallLost, KeeperLost, Machines, Unanswered
from asyncrl.cluster.remote_child import LOOK_S, PLACING, RemoteChild
from asyncrl.placement import Placement


class RemoteCluster(Children):
    """Processes by role on the machines of a cluster.

    A keeper lives as long as its bundle: a process that is started again has the same one, or a new one if that
    is lost.
    """

    def __init__(self, setup: ClusterSetup, machines: Machines) -> None:
        super().__init__(setup.config.stop_timeout_s)
        self._setup, self._machines, self._config = setup, machines, setup.config
        self._keepers: dict[tuple[str, int], Any] = {}
        self._plan = Plan(Wanted(), threads=setup.config.threads, on_devices=False)
        self._proof = Proof(str((setup.log_dir / f".shared-{secrets.token_hex(4)}").absolute()), secrets.token_hex(16))

    async def place(self, wanted: Wanted) -> Placement:
        """See Cluster. The devices are not known here: each keeper gives its own to what it starts."""
        on_devices = self._setup.device == "cuda" or self._machines.num_devices() > 0
        self._plan = Plan(wanted, self._config.threads, on_devices, ranks_on_cpu=self._setup.device == "cpu")
        self._leave_proof()
        self._machines.reserve(self._plan.groups())
        await self._placed()
        return Placement(ranks=((),) * wanted.ranks, servers=((),) * wanted.servers)

    def _leave_proof(self) -> None:
        self._setup.log_dir.mkdir(parents=True, exist_ok=True)
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
        spot, log = self._plan.spot(seat), self._setup.log_dir.absolute() / f"{name}.log"
        order = Order(
            role=role,
            name=name,
            arguments=tuple(arguments),
            env={**passed_on(os.environ, self._config.pass_env), **self._setup.env, **(env or {})},
            cwd=str(Path.cwd()),
            log=str(log),
            proof=self._proof,
            first_device=spot.first_device,
            num_devices=spot.num_devices,
            hang_timeout_s=self._config.hang_timeout_s,
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
