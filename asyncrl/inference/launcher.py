"""How the server of each engine is started: a row of ENGINES makes its command line; and the port that it gets.

Whoever can list processes reads command lines, so a key goes by the environment where a server takes it from there.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from asyncrl.cluster.ports import ReservedPort
from asyncrl.errors import PreflightError
from asyncrl.inference.key import KEY_VARIABLE, server_key

LOADER = "weightsync.sglang_loader.load"
"""Dotted name of the weight loader; a server accepts exactly the names that it was started with."""

WORKER = "weightsync.vllm_worker.LoadsStaged"
"""The same of vLLM: a class that its workers are extended by."""

STAGE_DIR = "ASYNCRL_STAGE_DIR"
MODEL_VERSION = "ASYNCRL_MODEL_VERSION"


@dataclass(frozen=True)
class LaunchSpec:
    """What a server is started with.

    Attributes:
        model_dir: Hugging Face directory; the weights of version `model_version`.
        host, port: address to listen on.
        stage_dir: where the host puts weights for the loader inside the server.
        dtype: of the weights, the wire's.
        compute_dtype: arithmetic of the local engine.
        python: of the server's environment; None: this one.
        on_cpu: start SGLang or vLLM without a device.
        shares_devices: memory is given back while the trainer computes.
        record_experts: SGLang keeps which experts it sent tokens to, for who asks.
        keeps_kv: requests in flight keep their cache across updates (weightsync.kv: keep).
        model_version: label of the weights in `model_dir`.
        api_key: bearer key that the server asks for; the environment's by default.
    """

    model_dir: Path
    host: str
    port: int
    stage_dir: Path
    dtype: str
    max_running_requests: int
    context_length: int
    seed: int
    compute_dtype: str = "auto"
    tp: int = 1
    python: Path | None = None
    on_cpu: bool = True
    shares_devices: bool = False
    record_experts: bool = False
    keeps_kv: bool = False
    extra_args: tuple[str, ...] = ()
    model_version: str = "0.0"
    api_key: str | None = field(default_factory=server_key, repr=False)

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://{self.host}:{self.port}"


@dataclass(frozen=True)
class Command:
    """A command line and what it adds to the environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def _local(spec: LaunchSpec) -> Command:
    argv = [
        sys.executable, "-m", "asyncrl.inference.local_server",
        *_shared_flags(spec),
        "--dtype", spec.dtype,
        "--compute-dtype", spec.compute_dtype,
        "--seed", str(spec.seed),
        "--deterministic",
    ]  # fmt: skip
    return Command(tuple(argv), {KEY_VARIABLE: spec.api_key} if spec.api_key else {})


def _sglang(spec: LaunchSpec) -> Command:
    argv = [
        str(spec.python or sys.executable), "-m", "sglang.launch_server",
        *_shared_flags(spec),
        "--dtype", spec.dtype,
        "--random-seed", str(spec.seed),
        "--tp-size", str(spec.tp),
        *(("--api-key", spec.api_key) if spec.api_key else ()),  # it reads a key nowhere else
    ]  # fmt: skip
    env = {}
    if spec.record_experts:
        if spec.on_cpu:
            raise PreflightError(
                "inference.record_experts = true, and this machine has no GPU: SGLang registers the record's memory "
                "with CUDA and would end when it starts. Set it to false, or serve on a machine with a GPU."
            )
        argv.append("--enable-return-routed-experts")
    if spec.keeps_kv:
        # A pause in place leaves the step that overlaps it under way: its tokens, of the old weights, would be counted
        # as the new version's.
        argv.append("--disable-overlap-schedule")
    if spec.on_cpu:
        argv += [
            "--device", "cpu",
            "--attention-backend", "torch_native",
            "--sampling-backend", "pytorch",
            "--grammar-backend", "none",
            "--mem-fraction-static", "0.1",
            "--max-total-tokens", str(spec.max_running_requests * spec.context_length),
        ]  # fmt: skip
        env["SGLANG_USE_CPU_ENGINE"] = "1"
        env["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(map(str, range(spec.tp)))  # one entry for each rank
    elif spec.shares_devices:
        # Without the backup, weights are lost when their memory is given back.
        argv += ["--enable-memory-saver", "--enable-weights-cpu-backup"]
    return Command(tuple(argv), env)


def _vllm(spec: LaunchSpec) -> Command:
    argv = [
        str(spec.python or sys.executable), "-m", "vllm.entrypoints.cli.main", "serve", str(spec.model_dir),
        "--host", spec.host,
        "--port", str(spec.port),
        "--max-num-seqs", str(spec.max_running_requests),
        "--max-model-len", str(spec.context_length),
        "--dtype", spec.dtype,
        "--seed", str(spec.seed),
        "--tensor-parallel-size", str(spec.tp),
        "--enable-scale-out",  # the route that takes and gives tokens
        "--generation-config", "vllm",  # the model's own would fill in what a request leaves out
        "--logprobs-mode", "processed_logprobs",
        "--worker-extension-cls", WORKER,
    ]  # fmt: skip
    env = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if spec.api_key:
        env["VLLM_API_KEY"] = spec.api_key
    if spec.keeps_kv:
        argv.append("--no-async-scheduling")  # as SGLang's overlap, below which a pause leaves a step under way
    if spec.on_cpu:
        argv.append("--enforce-eager")
        env["TORCHDYNAMO_DISABLE"] = "1"  # or the first request waits for a compiler, while probes find it hanging
        # Unless the user says otherwise: all of the memory, and cores of its own for each server.
        env |= {
            name: os.environ.get(name, value)
            for name, value in (("VLLM_CPU_KVCACHE_SPACE", "1"), ("VLLM_CPU_OMP_THREADS_BIND", "nobind"))
        }
    return Command(tuple(argv), env)


def _shared_flags(spec: LaunchSpec) -> tuple[str, ...]:
    return (
        "--model-path", str(spec.model_dir),
        "--host", spec.host,
        "--port", str(spec.port),
        "--max-running-requests", str(spec.max_running_requests),
        "--context-length", str(spec.context_length),
        "--weight-version", spec.model_version,
        "--custom-weight-loader", LOADER,
    )  # fmt: skip


ENGINES: Mapping[str, Callable[[LaunchSpec], Command]] = MappingProxyType(
    {"local": _local, "sglang": _sglang, "vllm": _vllm}
)
"""How each value of inference.engine is started."""


def command(engine: str, spec: LaunchSpec) -> Command:
    """The command that starts a server of this engine."""
    row = ENGINES[engine](spec)
    env = {
        STAGE_DIR: str(spec.stage_dir),
        MODEL_VERSION: spec.model_version,
        "TOKENIZERS_PARALLELISM": "false",
        **row.env,
    }
    return Command((*row.argv, *spec.extra_args), env)


def reserve_port(host: str, wanted: int) -> ReservedPort:
    """`wanted` if it is free, or any free port when it is 0, for a server that is started with it.

    Raises:
        PreflightError: the port is in use, or the address is not this machine's.
    """
    try:
        return ReservedPort(host, wanted)
    except OSError as error:
        raise PreflightError(
            f"cannot listen on {host}:{wanted}: {error.strerror}. Another process uses the port, perhaps a server "
            "of an earlier run. Stop it, set inference.base_port to other ports, or to 0 for free ones; "
            "inference.host must be an address of this machine."
        ) from error
