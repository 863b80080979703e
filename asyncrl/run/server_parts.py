"""How this machine's servers are started, from the config: for a host of the run and for `asyncrl eval` alike."""

import hashlib
import itertools
import socket
from pathlib import Path

from asyncrl.config import Config
from asyncrl.inference.launcher import LaunchSpec, reserve_port
from asyncrl.inference.listening import own_address
from asyncrl.inference.server import AdoptedServer, StartedServer
from asyncrl.run.devices import num_devices


def server_name(index: int, *, kind: str = "server", place: int = 0) -> str:
    """Name of a server in acks and reports: unique over the machines of a run, the same after a restart.

    Args:
        kind: server, adopted or lent; the two commands of a run may be on one machine.
        place: of its serve-rollout among those on the machine.
    """
    return f"{socket.gethostname()}{f'.{place}' if place else ''}-{kind}-{index}"


def adopted_server(config: Config, name: str, url: str) -> AdoptedServer:
    """A server that somebody else runs."""
    inference = config.inference
    return AdoptedServer(
        name,
        url,
        wait_s=inference.start_timeout_s,
        num_ranks=inference.tp,
        record_experts=inference.record_experts,
        keeps_kv=config.weightsync.kv == "keep",
    )


def started_server(
    config: Config, name: str, index: int, *, model_dir: Path, logs: Path, lent: bool = False
) -> StartedServer:
    """A server that this machine starts with the weights of `model_dir`, which are its version 0.0.

    Args:
        lent: on devices of the trainer's, beside servers that have devices of their own; its port follows theirs.
    """
    inference = config.inference
    first = inference.base_port + (inference.servers if lent else 0)
    return _started(
        config,
        name,
        first + index if inference.base_port else 0,
        model_dir=model_dir,
        logs=logs,
        context_length=inference.context_length,
        shares_devices=lent or config.plan.shares_gpus,
        record_experts=inference.record_experts,
    )


def teacher_server(config: Config, index: int, url: str, *, model_dir: Path, logs: Path) -> StartedServer:
    """A server that this machine starts at `url`, whose port is reserved for it, for a teacher."""
    port = int(url.rpartition(":")[2])
    # It scores whole trajectories: one more token than the policy's longest request, which is never continued.
    length = config.inference.context_length + 1
    return _started(
        config,
        teacher_name(index),
        port,
        model_dir=model_dir,
        logs=logs,
        context_length=length,
        shares_devices=False,  # a teacher never steps aside
        record_experts=False,
    )


def teacher_name(index: int) -> str:
    """Name of a teacher's process and log."""
    return f"teacher-{index}"


def engine_seed(run_seed: int, name: str, life: int) -> int:
    """Seed of what an engine draws by itself, below 2**31: its own for each server and each of its lives.

    SGLang heeds the seeds of requests in its deterministic mode only. With one seed for all, two servers would give the
    episodes of a group the same answers, and one that was started again would repeat itself.
    """
    digest = hashlib.blake2b(f"{run_seed} {name} {life}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") >> 1


def _started(
    config: Config,
    name: str,
    port: int,
    *,
    model_dir: Path,
    logs: Path,
    context_length: int,
    shares_devices: bool,
    record_experts: bool,
) -> StartedServer:
    inference, host, lives = config.inference, own_address(config.inference.host), itertools.count()

    def make_spec(port: int, stage_dir: Path) -> LaunchSpec:
        return LaunchSpec(
            model_dir,
            host,
            port,
            stage_dir,
            config.model.wire_dtype,
            inference.max_running_requests,
            context_length,
            engine_seed(config.run.seed, name, next(lives)),
            compute_dtype=inference.compute_dtype,
            tp=inference.tp,
            python=inference.python,
            on_cpu=num_devices() == 0,
            shares_devices=shares_devices,
            record_experts=record_experts,
            keeps_kv=config.weightsync.kv == "keep",
            extra_args=inference.extra_args,
        )

    return StartedServer(
        name,
        engine=inference.engine,
        make_spec=make_spec,
        reserve_port=lambda: reserve_port(host, port),
        host=host,
        log=logs / f"{name}.log",
        start_timeout_s=inference.start_timeout_s,
        stop_timeout_s=config.cluster.stop_timeout_s / 2,  # the rest is for the host that stops it
    )
