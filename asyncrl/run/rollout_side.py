"""The rollout side of one machine: a host per server and the workers, started, restarted and stopped in order.

Beside a trainer it is one of three: all of it, where devices are shared; hosts of lent servers alone; or nothing.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from asyncrl.cluster import Child, Cluster, Seat
from asyncrl.config import Config
from asyncrl.errors import PreflightError, ProcessDied
from asyncrl.placement import Placement
from asyncrl.run.server_parts import teacher_name
from asyncrl.run.signals import PREEMPTED
from asyncrl.run.teacher_places import ServedTeacher

FOR_THE_USER = (2, 3, 4)
"""Exit codes of errors that a restart would repeat: configuration, data, machine, a server that cannot work."""
AT_THE_START = (2, 3)
"""Those of them that show before anything is served, so that nothing is lost by ending the run for them."""


def num_servers_beside_trainer(config: Config, num_teachers: int = 0) -> int:
    """How many servers the trainer's machine places on the trainer's devices.

    Raises:
        PreflightError: its ranks have fewer devices than one server.
    """
    if config.plan.shares_gpus:
        return config.inference.servers + num_teachers
    if not config.plan.lend_trainer_gpus:
        return 0
    ranks, tp = config.trainer.parallel.world, config.inference.tp
    if ranks < tp:
        raise PreflightError(
            f"schedule.lend_trainer_gpus: one server takes inference.tp = {tp} devices, and {ranks} trainer ranks have "
            f"{ranks}: there is nothing to lend. Set it to false, or lower inference.tp."
        )
    return ranks // tp


def side_beside_trainer(
    config: Config,
    cluster: Cluster,
    config_file: Path,
    placement: Placement,
    teachers: Sequence[ServedTeacher] = (),
) -> "RolloutSide | None":
    """What `train` starts beside its ranks; not started yet. `placement`: of so many servers as said above."""
    if config.plan.shares_gpus:
        return RolloutSide(config, cluster, config_file, placement, teachers)
    if config.plan.lend_trainer_gpus:
        return RolloutSide(config, cluster, config_file, placement, only_lent=True)
    return None


class RolloutSide:
    """Children of the roles server-host, teacher-server and rollout-worker.

    A host restarts its own server, so one that ends has met something it cannot mend; a worker that ends loses its
    claims to others. Any is started again, `inference.max_restarts` times, of which those before a long life count no
    more. A server that cannot work is left out as long as another one is there.
    """

    def __init__(
        self,
        config: Config,
        cluster: Cluster,
        config_file: Path,
        placement: Placement,
        teachers: Sequence[ServedTeacher] = (),
        *,
        only_lent: bool = False,
        place: int = 0,
    ) -> None:
        """Nothing is started yet.

        Args:
            placement: its servers are those of the policy, then the teachers.
            teachers: what `teacher_places.with_addresses` says is to be served here.
            place: see places.own_place.
            only_lent: servers on the devices of a trainer that has its own, and no worker. The run can do without
                them: one that uses its restarts up is left out.
        """
        self._inference, self._cluster, self._config_file = config.inference, cluster, config_file
        self._only_lent, own = only_lent, ["--place", str(place)] if place else []
        self._roles: dict[str, tuple[str, list[str], Seat]] = {}
        self._children: dict[str, Child] = {}
        self._restarts, self._started_s = Counter[str](), dict[str, float]()
        if only_lent:
            for index, devices in enumerate(placement.servers):
                seat = Seat("servers", index, devices)
                self._add("server-host", f"lent-{index}", ["--index", str(index), "--lent"], seat)
            return
        for index, url in enumerate(config.inference.urls):
            arguments = ["--index", str(index), "--url", url, *own]
            self._add("server-host", f"adopted-{index}", arguments, Seat("servers", index))
        for index in range(config.inference.servers):
            seat = Seat("servers", index, placement.servers[index])
            self._add("server-host", f"server-{index}", ["--index", str(index), *own], seat)
        for index, teacher in enumerate(teachers):
            arguments = ["--index", str(index), "--url", teacher.url, "--model", str(teacher.path)]
            number = config.inference.servers + index
            seat = Seat("servers", number, placement.servers[number])
            self._add("teacher-server", teacher_name(index), arguments, seat)
        for index in range(config.rollout.workers):
            self._add("rollout-worker", f"worker-{index}", ["--index", str(index)], Seat("workers", index))

    def _add(self, role: str, name: str, arguments: list[str], seat: Seat) -> None:
        self._roles[name] = (role, ["--config", str(self._config_file), *arguments], seat)

    def adopt(self, name: str, url: str) -> None:
        """Start a host for a server that joins; `name` is the server's."""
        number = 1 + max((seat.index for _, _, seat in self._roles.values() if seat.kind == "servers"), default=-1)
        self._add("server-host", name, ["--name", name, "--url", url], Seat("servers", number))
        self._start(name)

    async def dismiss(self, name: str) -> None:
        """End the host of a server that joined; one that has ended already is only forgotten."""
        self._roles.pop(name, None)
        if (child := self._children.pop(name, None)) is not None:
            await self._cluster.stop([child])

    def start(self) -> None:
        """Start every host and worker; they find each other through Redis, so the order does not matter."""
        for name in self._roles:
            self._start(name)

    def _start(self, name: str) -> None:
        role, arguments, seat = self._roles[name]
        self._children[name] = self._cluster.start(role, name, arguments, seat=seat)
        self._started_s[name] = time.monotonic()

    def tend(self) -> list[str]:
        """Start again what has ended; returns what happened, for people.

        Raises:
            ProcessDied: a child failed in a way that a restart would repeat, or the restarts are used up.
        """
        happened = []
        for name, child in list(self._children.items()):
            code = child.exit_code()
            if code is None:
                continue
            failure = child.failure()
            reason = failure.message if failure is not None else f"{name} ended by itself"
            may_restart = code not in FOR_THE_USER and self._may_restart(name)
            if not may_restart and (without := self._goes_on_without(name, code)):
                self._cluster.forget(self._children.pop(name))
                happened.append(f"{reason.rstrip('.')}; {without} (log: {child.log})")
                continue
            if not may_restart:
                error = ProcessDied(f"{reason} (log: {child.log})")
                error.exit_code = code if code in FOR_THE_USER else ProcessDied.exit_code
                raise error
            self._restarts[name] += 1
            self._cluster.forget(child)
            self._start(name)
            happened.append(f"{reason}; started again ({self._restarts[name]} of {self._inference.max_restarts})")
        return happened

    def _may_restart(self, name: str) -> bool:
        if time.monotonic() - self._started_s[name] >= self._inference.restarts_forgiven_s:
            self._restarts[name] = 0
        return self._restarts[name] < self._inference.max_restarts

    def _goes_on_without(self, name: str, code: int) -> str:
        """What a run does that can do without this child, empty for one that cannot."""
        if self._only_lent:
            return "" if code in AT_THE_START else "its device is not lent any more, training goes on"
        hosts = [other for other in self._children if self._roles[other][0] == "server-host"]
        if name in hosts and len(hosts) > 1 and code not in AT_THE_START:
            return f"the run goes on with {len(hosts) - 1} servers"
        return ""

    async def stop(self, hurry: asyncio.Event | None = None) -> float:
        """Workers first, so that they can finish or park groups while servers still answer; then the hosts.

        Args:
            hurry: a preemption notice, before or during the stop, which workers are told of.
        Returns:
            Seconds until the workers had left, and all that is kept of their groups was parked.
        """
        start_s = time.monotonic()
        workers = [child for name, child in self._children.items() if self._roles[name][0] == "rollout-worker"]
        telling = asyncio.create_task(_pass_on(hurry or asyncio.Event(), workers))
        try:
            await self._cluster.stop(workers)
        finally:
            telling.cancel()
        parked_s = time.monotonic() - start_s
        await self._cluster.stop([child for child in self._children.values() if child not in workers])
        self._children.clear()
        return parked_s


async def _pass_on(hurry: asyncio.Event, workers: Sequence[Child]) -> None:
    await hurry.wait()
    for child in workers:
        child.send(PREEMPTED)
