"""Open the cluster that a command's processes run on, and check that they can reach each other there."""

import asyncio
from collections.abc import Coroutine
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from asyncrl.cluster import Cluster, ClusterSetup, Wanted
from asyncrl.cluster import open_cluster as open_backend
from asyncrl.config import Config
from asyncrl.errors import PreflightError
from asyncrl.placement import Placement
from asyncrl.run.connections import URL
from asyncrl.run.devices import num_devices

T = TypeVar("T")


def open_cluster(config: Config, log_dir: Path, url: str) -> Cluster:
    """The cluster of cluster.backend. `url`: Redis, for the children alone.

    Raises:
        PreflightError: its library is missing, or nobody answers.
    """
    setup = ClusterSetup(
        run=config.run.name,
        log_dir=log_dir,
        env={URL: url, **thread_limits(config)},
        config=config.cluster,
        num_devices=num_devices(),
        device=config.trainer.device,
    )
    return open_backend(setup)


async def place(cluster: Cluster, wanted: Wanted, config: Config, url: str, stop: asyncio.Event) -> Placement | None:
    """Room for all that is wanted, or None if the command is stopped before there is.

    Args:
        config: as it was given, before teachers with a path got an address.
    Raises:
        PreflightError: the processes on the cluster's machines would not find Redis or each other.
        WaitTimeout: there was no room in time.
    """
    placement = await unless_stopped(stop, cluster.place(wanted))
    require_reachable(config, url, cluster.machines())  # now: machines may have joined meanwhile
    return placement


async def unless_stopped(stop: asyncio.Event, waiting: Coroutine[Any, Any, T]) -> T | None:
    """What `waiting` gives, or None if `stop` is set first: a cluster may have no room for a long time."""
    work, stopped = asyncio.ensure_future(waiting), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
        return work.result() if work.done() else None
    finally:
        stopped.cancel()
        work.cancel()


def thread_limits(config: Config) -> dict[str, str]:
    """Environment of every child: more threads than cores make each other wait at barriers."""
    threads = str(config.cluster.threads)
    return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"}


def require_reachable(config: Config, url: str, machines: tuple[str, ...]) -> None:
    """Refuse addresses that only one machine can use when processes may be on several.

    Raises:
        PreflightError: names the key.
    """
    if len(machines) <= 1:
        return
    where = f"the cluster has {len(machines)} machines ({', '.join(machines[:4])}{', ...' if machines[4:] else ''})"
    if _is_of_one_machine(url):
        raise PreflightError(
            f"{where}, and the run's Redis is this machine's alone. Start a Redis that all of them reach, and set "
            "buffer.url, best through ASYNCRL_REDIS_URL."
        )
    if config.inference.servers and _is_loopback(config.inference.host):
        raise PreflightError(
            f"{where}, and inference.host = {config.inference.host}: workers on one would not reach a server on "
            "another. Set inference.host to the network that joins them, for example 10.0.0.0/16, and set "
            "ASYNCRL_SERVER_KEY, since a server's routes can replace its weights."
        )
    if config.weightsync.moves_by == "tcp" and config.weightsync.tcp.is_loopback:
        raise PreflightError(
            f"{where}, and weightsync.tcp.bind = {config.weightsync.tcp.bind}: servers on one would not reach a "
            "trainer rank on another. Bind to an address of their network, or 0.0.0.0, and set weightsync.key."
        )
    served = [teacher.name for teacher in config.teachers if teacher.path is not None]
    if served:
        raise PreflightError(
            f"{where}, and teacher {served[0]!r} has a path: it gets an address of this machine before it is known "
            "which one serves it. Serve it by itself, and set its urls."
        )


def require_lent_servers_reachable(config: Config, url: str) -> None:
    """Refuse to lend on an address that workers of another machine would take for one of their own.

    Raises:
        PreflightError: names the key.
    """
    lends = config.plan.lend_trainer_gpus and not config.plan.shares_gpus
    if lends and _is_loopback(config.inference.host) and not _is_of_one_machine(url):
        raise PreflightError(
            f"schedule.lend_trainer_gpus with inference.host = {config.inference.host}, and a Redis that other "
            "machines reach: their workers would look for the trainer's servers on their own machine, and find others "
            "there. Set inference.host to an address of this machine, or to the network that joins them, and set "
            "ASYNCRL_SERVER_KEY, since a server's routes can replace its weights."
        )


def _is_of_one_machine(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme.startswith("unix") or _is_loopback(parts.hostname or "")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
