"""Checks of the machine: disk, ports, devices, threads."""

import importlib.util
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack

from asyncrl.cluster.address import why_unreachable
from asyncrl.config import Config
from asyncrl.doctor.finding import Finding
from asyncrl.errors import PreflightError
from asyncrl.inference.listening import own_address
from asyncrl.placement import place
from weightsync.errors import TransportError
from weightsync.transport.tcp.address import url_of
from weightsync.transport.tcp.sockets import listening

BYTES_PER_WEIGHT = 12  # a checkpoint's float32 weight and the two moments of AdamW
MIN_FREE_BYTES = 256 << 20


def check_disk(config: Config) -> Iterator[Finding]:
    """Room for the checkpoints that are kept at the same time, one more than keep_last while one is being written."""
    directory = config.run.directory
    existing = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        yield Finding("disk", False, f"{existing} cannot be written", "Change its permissions, or set run.dir.")
        return
    weights = sum(file.stat().st_size for file in config.model.path.glob("*.safetensors"))
    num_weights = weights // (4 if config.model.wire_dtype == "float32" else 2)
    need = MIN_FREE_BYTES + num_weights * BYTES_PER_WEIGHT * (config.trainer.checkpoint.keep_last + 1)
    free = shutil.disk_usage(existing).free
    detail = f"{free / 1e9:.1f} GB free at {existing}, {need / 1e9:.1f} GB needed for checkpoints"
    fix = "" if free >= need else "Make room, set run.dir to another disk, or lower trainer.checkpoint.keep_last."
    yield Finding("disk", free >= need, detail, fix)


def check_ports(config: Config) -> Iterator[Finding]:
    """The ports of the servers that will be started here."""
    settings = config.inference
    if settings.servers == 0 or settings.base_port == 0:
        yield Finding(
            "ports", True, "the system chooses free ones" if settings.servers else "no server is started here"
        )
        return
    try:
        host = own_address(settings.host)
    except PreflightError as error:
        yield Finding("ports", False, str(error), "On a machine without servers, this need not hold.")
        return
    for port in range(settings.base_port, settings.base_port + settings.servers):
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((host, port))
            except (OSError, OverflowError) as error:
                fix = "Stop what listens there (another run?), or set inference.base_port, 0 for any free port."
                yield Finding(f"port {port}", False, f"{host}:{port} cannot be listened on: {error}", fix)
            else:
                yield Finding(f"port {port}", True, f"{host}:{port} is free")


def check_parts_server(config: Config) -> Iterator[Finding]:
    """The ports on which the trainer's ranks serve weights, if they do, and where others would reach them."""
    settings = config.weightsync
    if settings.moves_by != "tcp":
        return
    with ExitStack() as opened:
        try:
            ranks = [opened.enter_context(listening(settings.tcp)) for _ in range(config.trainer.parallel.world)]
        except TransportError as error:
            fix = "On a machine for servers only, this need not hold."
            yield Finding("weights over tcp", False, str(error), fix)
            return
        urls = [url_of(settings.tcp, listener.getsockname()[1]) for listener in ranks]
        read_at = ", ".join(urls) if settings.tcp.first_port else f"any free port, like {urls[0]}"
        yield Finding("weights over tcp", True, f"{len(ranks)} ranks would be read at {read_at}")


def check_devices(config: Config) -> Iterator[Finding]:
    """Devices for ranks and servers, and threads for the cores there are."""
    ranks, servers = config.trainer.parallel.world, config.inference.servers
    if config.cluster.backend != "local":
        yield from check_cluster(config)
        return
    num_devices = num_cuda_devices()
    try:
        if config.trainer.device == "cuda" and num_devices < ranks:
            raise PreflightError(f"trainer.device = cuda needs {ranks} CUDA devices, torch sees {num_devices}.")
        if config.trainer.device != "cpu":
            place(
                ranks=ranks,
                servers=servers,
                tp=config.inference.tp,
                num_devices=num_devices,
                shares_devices=config.plan.shares_gpus,
            )
    except PreflightError as error:
        yield Finding("devices", False, str(error), "On a machine for one side only, this need not hold.")
    else:
        yield Finding("devices", True, f"{num_devices} CUDA devices for {ranks} ranks and {servers} servers")
    local = servers if config.inference.engine == "local" and num_devices == 0 else 0
    computing, cores = (ranks + local) * config.cluster.threads, len(os.sched_getaffinity(0))
    advice = "" if computing <= cores else "Lower cluster.threads: threads that share a core make each other wait."
    yield Finding("threads", True, f"{computing} computing threads on {cores} cores", advice)


def check_cluster(config: Config) -> Iterator[Finding]:
    """The library of the cluster that gives the devices out, and whether somebody answers at its address."""
    backend, address = config.cluster.backend, config.cluster.ray_address
    if importlib.util.find_spec(backend) is None:
        fix = f"pip install 'asyncrl[{backend}]'"
        yield Finding("cluster", False, f"cluster.backend = {backend}, and its package is not installed", fix)
        return
    if address is None:
        yield Finding("cluster", True, f"{backend} at RAY_ADDRESS, or on this machine, gives devices out")
    elif why := why_unreachable(address):
        fix = "Start `ray start --head` there, or correct cluster.ray_address."
        yield Finding("cluster", False, f"cluster.ray_address = {address}: {why}", fix)
    else:
        yield Finding("cluster", True, f"{backend} at {address} gives devices out")


def num_cuda_devices() -> int:
    """Devices that torch can use; 0 without torch."""
    if importlib.util.find_spec("torch") is None:
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
