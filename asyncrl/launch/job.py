"""What a run asks of a scheduler, read off its configuration: sides, devices, machines, seconds to stop in."""

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.load_config import SECRET_VARIABLES, LoadedConfig, to_yaml

SPARE_S = 60
"""Seconds a command may need to stop beside those that the configuration bounds: to close books, plots, connections."""
SERVER_KEY = "ASYNCRL_SERVER_KEY"


@dataclass(frozen=True)
class Side:
    """One of the two commands.

    Attributes:
        name: `trainer` or `rollout`.
        command: of asyncrl.
        flags: after the configuration.
        num_nodes: machines.
        devices: accelerators asked for on each of them.
        grace_s: seconds from the notice to its end.
        notice: signal that announces the end, without SIG.
    """

    name: str
    command: str
    flags: tuple[str, ...]
    num_nodes: int
    devices: int
    grace_s: int
    notice: str


@dataclass(frozen=True)
class Job:
    """A run as a scheduler sees it.

    Attributes:
        name: of the run.
        run_dir: on storage that all machines share.
        config: the whole configuration as YAML, without a secret.
        secrets: variables that hold secrets, the first of which the run cannot do without.
    """

    name: str
    run_dir: str
    config: str
    secrets: tuple[str, ...]
    sides: tuple[Side, ...]


def job_of(loaded: LoadedConfig, *, devices_per_node: int, network: str) -> Job:
    """What the run asks for.

    Args:
        devices_per_node: accelerators of one machine.
        network: for servers, where they would listen on the loopback address of several machines.
    Raises:
        ConfigError: a path is relative, a password would be copied, or one server needs more than one machine.
    """
    config = loaded.config
    sides = tuple(_sides(config, devices_per_node))
    _require_absolute(config)
    tree = _without_secrets(loaded.resolved)
    if _is_loopback(config.inference.host):
        tree["inference"]["host"] = network
    return Job(
        name=config.run.name,
        run_dir=str(config.run.directory),
        config=to_yaml(LoadedConfig(config, {}, tree)),
        secrets=(*SECRET_VARIABLES.values(), SERVER_KEY),
        sides=sides,
    )


def _sides(config: Config, per_node: int) -> Iterator[Side]:
    shares, tp = config.plan.shares_gpus, config.inference.tp
    if tp > per_node:
        raise ConfigError(
            f"inference.tp = {tp}, and a machine has devices_per_node = {per_node}: a server is on one machine. Lower "
            "the first, or give the machines' number by --set devices_per_node=N."
        )
    stop_s = config.cluster.stop_timeout_s
    servers = 0 if config.inference.engine == "local" else config.inference.servers  # the local engine is a CPU's
    ranks = 0 if config.trainer.device == "cpu" else config.trainer.parallel.world
    # Shared devices go in bundles of a server's size; see asyncrl.cluster.bundles.
    share = tp if shares and servers else 1
    bundles = max(-(-ranks // share), servers if shares else 0)
    nodes, devices = _machines(bundles, share, per_node)
    grace_s = config.trainer.stop_grace_s + (2 * stop_s if shares else 0) + SPARE_S
    yield Side("trainer", "train", ("--resume",), nodes, devices, round(grace_s), "TERM")
    if not shares:
        nodes, devices = _machines(servers, tp, per_node)
        yield Side("rollout", "serve-rollout", (), nodes, devices, round(2 * stop_s + SPARE_S), "USR1")


def _machines(bundles: int, size: int, per_node: int) -> tuple[int, int]:
    """Machines for bundles of devices, none of which is split, and devices to ask for on each."""
    per_machine = per_node // size
    nodes = max(1, -(-bundles // per_machine))
    return nodes, min(bundles, per_machine) * size


def _require_absolute(config: Config) -> None:
    relative = [f"{key} = {path}" for key, path in _paths(config) if not path.is_absolute()]
    if relative:
        raise ConfigError(
            f"{'; '.join(relative)}: relative to a directory of this machine, and the commands run on others. Give "
            "absolute paths on storage that all of them share, for example run.dir=/shared/runs/demo."
        )


def _paths(config: Config) -> Iterator[tuple[str, Path]]:
    yield "run.dir", config.run.directory
    yield "model.path", config.model.path
    training = "data.sources" if config.data.sources else "data.train_files"
    yield from ((training, path) for path in config.data.training_files)
    yield from (("data.val_files", path) for path in config.data.val_files)
    if config.rollout.reward.file is not None:
        yield "rollout.reward.file", config.rollout.reward.file
    yield from (("rollout.reward.functions", function.file) for function in config.rollout.reward.functions)
    for teacher in config.teachers:
        if teacher.path is not None:
            yield f"teachers {teacher.name}", teacher.path
    for key in ("directory", "stage_dir"):
        folder = getattr(config.weightsync, key)
        if folder is not None and "://" not in folder:
            yield f"weightsync.{key}", Path(folder)


def _without_secrets(resolved: dict[str, Any]) -> dict[str, Any]:
    """The tree with its secret keys unset: they come from the environment where the run is."""
    tree = {name: dict(value) if isinstance(value, dict) else value for name, value in resolved.items()}
    for key in SECRET_VARIABLES:
        section, _, field = key.partition(".")
        tree[section][field] = None
    masked = [key for key, value in _leaves(tree, "") if isinstance(value, str) and "****" in value]
    if masked:
        raise ConfigError(
            f"{', '.join(masked)}: holds a password, which would be copied into files for others. Give an address "
            "without one."
        )
    return tree


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{key}[{index}]")
    else:
        yield key, value


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
