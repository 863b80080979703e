"""The one door to Ray: its nodes, placement groups and actors as the machines of a RemoteCluster.

A keeper is an actor in a bundle of a placement group, which Ray places again when its node dies. What is passed to an
actor's methods is not shown by Ray's dashboard and logs, as a runtime environment would be; so secrets go that way.
"""

import atexit
import logging
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from asyncrl import waits
from asyncrl.cluster.address import why_unreachable
from asyncrl.cluster.base import ClusterSetup
from asyncrl.cluster.bundles import Bundle, BundleGroup
from asyncrl.cluster.head import HeadWatch
from asyncrl.cluster.keeper import Keeper
from asyncrl.cluster.machines import CallLost, KeeperLost, Unanswered
from asyncrl.cluster.remote import RemoteCluster
from asyncrl.errors import ClusterLost, PreflightError

LOCAL = "local"
"""Ray's word for a cluster of this machine alone, started for the command and ended with it."""

LOCAL_CPUS = 1024
"""CPUs that such a cluster counts. As with plain processes, which share this machine's cores is up to the user."""

CONNECT_S = 120.0
"""Seconds in which a cluster takes us in. Ray has no bound of its own: if the head dies meanwhile it waits for ever."""

PARTING_S = 5.0
"""Seconds that keepers have to hear, without a head, that they are to end what they started."""

RECONNECT, RECONNECT_S = "RAY_gcs_rpc_server_reconnect_timeout_s", 60.0
"""Seconds without its head after which Ray ends whoever uses it, from C++, with exit code 1. After half of them the
command says by itself what happened, with an exit code that asks for another start."""


class RayKeeper(Keeper):
    """A keeper that says which node it is on, and ends what it started when the head is lost.

    The command tells it so where it can be reached. Where it cannot, the machine is cut off or the command has died,
    too, and Ray itself would end the keeper after RECONNECT_S only. It waits a little longer than the command, and not
    less: what the command finds when a head is back in time for it must still run.
    """

    def __init__(self) -> None:
        where = ray.get_runtime_context()
        super().__init__(f"Ray node {where.get_node_id()}, {ray.util.get_node_ip_address()}")
        self._head = HeadWatch(where.gcs_address, _patience_s() + PARTING_S, lost=self.end)


@dataclass
class _Reserved:
    group: BundleGroup
    placed: PlacementGroup


class RayMachines:
    """The nodes of a Ray cluster.

    Args:
        address: host:port of its head, or LOCAL.
        run: namespace of the actors, for people who look at the cluster.
    Raises:
        PreflightError: nobody answers there, or refuses us.
        ClusterLost: it did neither take us in nor refuse for CONNECT_S seconds.
    """

    def __init__(self, address: str, run: str) -> None:
        if why := why_unreachable(address):
            raise _refused(address, why)
        _connect(address, run)
        self._reserved: dict[str, _Reserved] = {}
        self._actors: list[Any] = []
        self._head = HeadWatch(ray.get_runtime_context().gcs_address, _patience_s())

    def addresses(self) -> tuple[str, ...]:
        """See Machines."""
        return tuple(dict.fromkeys(node["NodeManagerAddress"] for node in _living().values()))

    def num_devices(self) -> int:
        """See Machines."""
        return sum(int(node["Resources"].get("GPU", 0)) for node in _living().values())

    def reserve(self, groups: Sequence[BundleGroup]) -> None:
        """See Machines."""
        for name in list(self._reserved):
            remove_placement_group(self._reserved.pop(name).placed)
        for group in groups:
            bundles = [_resources(group.bundle)] * group.count
            self._reserved[group.name] = _Reserved(group, placement_group(bundles, strategy=group.strategy))

    def lacking(self) -> str | None:
        """See Machines."""
        self._require_head()
        living = _living()
        waiting = [
            str(reserved.group)
            for reserved in self._reserved.values()
            if (table := placement_group_table(reserved.placed))["state"] != "CREATED"
            or not set(table["bundles_to_node_id"].values()) <= set(living)
        ]
        if not waiting:
            return None
        free, whole = ray.available_resources(), ray.cluster_resources()
        room = ", ".join(f"{free.get(name, 0):g} of {whole[name]:g} {name}" for name in ("CPU", "GPU") if name in whole)
        return f"no room yet for {'; '.join(waiting)}; free on {len(living)} nodes: {room or 'nothing'}"

    def address_of(self, group: str, bundle: int) -> str:
        """See Machines."""
        node = placement_group_table(self._reserved[group].placed)["bundles_to_node_id"][bundle]
        return str(_living()[node]["NodeManagerAddress"])

    def keeper(self, group: str, bundle: int) -> Any:
        """See Machines."""
        reserved = self._reserved[group]
        actor = (
            ray.remote(RayKeeper)
            .options(
                num_cpus=reserved.group.bundle.cpus,
                num_gpus=reserved.group.bundle.devices,
                max_restarts=0,  # what it started would not be there; the supervisor decides
                scheduling_strategy=PlacementGroupSchedulingStrategy(reserved.placed, bundle),
            )
            .remote()
        )
        self._actors.append(actor)
        return actor

    def call(self, keeper: Any, method: str, *arguments: Any) -> Any:
        """See Machines."""
        return getattr(keeper, method).remote(*arguments)

    def answer(self, call: Any) -> Any:
        """See Machines."""
        self._require_head()
        if not ray.wait([call], timeout=0)[0]:
            raise Unanswered
        try:
            return ray.get(call)
        except ActorUnavailableError as error:
            raise CallLost from error
        except RayTaskError:
            raise  # a bug of the keeper
        except RayError as error:
            raise KeeperLost(_reason(error)) from error

    def close(self) -> None:
        """See Machines."""
        self._head.close()
        if self._head.why_lost:
            # Ray would wait for its head, whoever it is asked to end; keepers are reached without it. Those that are
            # not miss the head themselves, and end what they started.
            ended = [self.call(actor, "end") for actor in self._actors]
            ray.wait(ended, num_returns=len(ended), timeout=PARTING_S)
            self._actors.clear()
            atexit.register(_leave)
            return
        while self._actors:
            ray.kill(self._actors.pop(), no_restart=True)
        while self._reserved:
            remove_placement_group(self._reserved.popitem()[1].placed)

    def _require_head(self) -> None:
        if why := self._head.why_lost:
            raise ClusterLost(
                f"the head of the Ray cluster is lost: {self._head.address}: {why}. What ran on the cluster ends with "
                "it, and costs the work since the newest checkpoint. Start Ray again, and the command with --resume."
            )


def _patience_s() -> float:
    return float(os.environ.get(RECONNECT, RECONNECT_S)) / 2


def _connect(address: str, run: str) -> None:
    failed: list[BaseException] = []

    def connect() -> None:
        try:
            ray.init(
                address,
                namespace=f"asyncrl-{run}",
                log_to_driver=False,  # children write their logs into the run directory
                logging_level=logging.WARNING,
                include_dashboard=False if address == LOCAL else None,
                num_cpus=LOCAL_CPUS if address == LOCAL else None,
            )
        except BaseException as error:
            failed.append(error)

    # A thread, since the call cannot be interrupted. It leaves the handlers of signals alone then, and warns of that.
    logging.getLogger("ray._private.worker").addFilter(_is_no_warning_of_handlers)
    thread = threading.Thread(target=connect, name="connect to Ray", daemon=True)
    thread.start()
    with waits.timed("ray", lambda: f"the Ray cluster at {address!r} is to take this command in"):
        thread.join(CONNECT_S)
    if thread.is_alive():
        atexit.register(_leave)
        raise ClusterLost(
            f"the Ray cluster at {address!r} neither took this command in nor refused it for {CONNECT_S:g} s; its head "
            "was probably lost meanwhile. See `ray status` on its first machine, then start the command again."
        )
    match failed:
        case [RayError() | OSError() | RuntimeError() | ValueError() as error]:
            raise _refused(address, str(error)) from error
        case [error]:
            raise error


def _is_no_warning_of_handlers(record: logging.LogRecord) -> bool:
    return "SIGTERM handler is not set" not in record.getMessage()


def _refused(address: str, why: str) -> PreflightError:
    return PreflightError(
        f"no Ray cluster can be used at {address!r}: {why.rstrip('.')}. Start one with `ray start --head` on its first "
        "machine and `ray start --address=HOST:6379` on the others, run this command on one of them, and give the "
        "address as --ray-address, cluster.ray_address or RAY_ADDRESS; where it asks for a token, the file of the head "
        "(~/.ray/auth_token) has to be on each."
    )


def _reason(error: RayError) -> str:
    """Ray's sentences about a dead actor, without its list of ids."""
    return " ".join(line.strip() for line in str(error).splitlines() if not line.startswith("\t"))[:500]


def _leave() -> None:
    """Leave without what Ray does at the end of a process: without its head it is cut down by a segmentation fault."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ClusterLost.exit_code)


def _living() -> dict[str, dict[str, Any]]:
    return {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}


def _resources(bundle: Bundle) -> dict[str, float]:
    return {"CPU": bundle.cpus, **({"GPU": bundle.devices} if bundle.devices else {})}


def open_cluster(setup: ClusterSetup) -> RemoteCluster:
    """The Ray cluster that the configuration or the environment names, or one of this machine alone."""
    address = setup.config.ray_address or os.environ.get("RAY_ADDRESS") or LOCAL
    return RemoteCluster(setup, RayMachines(address, setup.run))
