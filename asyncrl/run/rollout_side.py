"""The rollout side of one machine: a host per server and the workers, started, restarted and stopped in order."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from asyncrl.cluster import Child, LocalCluster
from asyncrl.config import Config
from asyncrl.errors import ProcessDied
from asyncrl.placement import Placement
from asyncrl.run.server_parts import teacher_name
from asyncrl.run.signals import PREEMPTED
from asyncrl.run.teacher_places import ServedTeacher

FOR_THE_USER = (2, 3, 4)
"""Exit codes of errors that a restart would repeat: configuration, data, machine, a server that cannot work."""


class RolloutSide:
    """Children of the roles server-host, teacher-server and rollout-worker.

    A host restarts its own server, so one that ends has met something it cannot mend; a worker that ends loses its
    claims to others. Any is started again, `inference.max_restarts` times in all.
    """

    def __init__(
        self,
        config: Config,
        cluster: LocalCluster,
        config_file: Path,
        placement: Placement,
        teachers: Sequence[ServedTeacher] = (),
    ) -> None:
        """Nothing is started yet.

        Args:
            placement: its servers are those of the policy, then the teachers.
            teachers: what `teacher_places.with_addresses` says is to be served here.
        """
        self._config, self._cluster, self._config_file = config, cluster, config_file
        self._roles: dict[str, tuple[str, list[str], dict[str, str]]] = {}
        for index, url in enumerate(config.inference.urls):
            self._add("server-host", f"adopted-{index}", ["--index", str(index), "--url", url], ())
        for index in range(config.inference.servers):
            self._add("server-host", f"server-{index}", ["--index", str(index)], placement.servers[index])
        for index, teacher in enumerate(teachers):
            arguments = ["--index", str(index), "--url", teacher.url, "--model", str(teacher.path)]
            devices = placement.servers[config.inference.servers + index]
            self._add("teacher-server", teacher_name(index), arguments, devices)
        for index in range(config.rollout.workers):
            self._add("rollout-worker", f"worker-{index}", ["--index", str(index)], ())
        self._children: dict[str, Child] = {}
        self._restarts = 0

    def _add(self, role: str, name: str, arguments: list[str], devices: tuple[int, ...]) -> None:
        env = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, devices))}
        self._roles[name] = (role, ["--config", str(self._config_file), *arguments], env)

    def start(self) -> None:
        """Start every host and worker; they find each other through Redis, so the order does not matter."""
        for name in self._roles:
            self._start(name)

    def _start(self, name: str) -> None:
        role, arguments, env = self._roles[name]
        self._children[name] = self._cluster.start(role, name, arguments, env)

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
            if code in FOR_THE_USER or self._restarts >= self._config.inference.max_restarts:
                error = ProcessDied(f"{reason} (log: {child.log})")
                error.exit_code = code if code in FOR_THE_USER else ProcessDied.exit_code
                raise error
            self._restarts += 1
            self._cluster.forget(child)
            self._start(name)
            happened.append(f"{reason}; started again ({self._restarts} of {self._config.inference.max_restarts})")
        return happened

    async def stop(self, hurry: asyncio.Event | None = None) -> None:
        """Workers first, so that they can finish or park groups while servers still answer; then the hosts.

        Args:
            hurry: a preemption notice, before or during the stop, which workers are told of.
        """
        workers = [child for name, child in self._children.items() if self._roles[name][0] == "rollout-worker"]
        telling = asyncio.create_task(_pass_on(hurry or asyncio.Event(), workers))
        try:
            await self._cluster.stop(workers)
        finally:
            telling.cancel()
        await self._cluster.stop([child for child in self._children.values() if child not in workers])
        self._children.clear()


async def _pass_on(hurry: asyncio.Event, workers: Sequence[Child]) -> None:
    await hurry.wait()
    for child in workers:
        child.send(PREEMPTED)
