"""Start, watch and stop the process of one inference server; which server is a row of ENGINES.

The server is in a process group of its own, so that a Ctrl-C at the terminal reaches only its host, which stops it in
order. It ends when the host ends, however that ends, and all that it started with it: see reaper.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from asyncrl import waits
from asyncrl.cluster.ports import ReservedPort
from asyncrl.errors import PreflightError
from asyncrl.inference.errors import ServerUnavailable
from asyncrl.inference.key import server_key

LOADER = "weightsync.sglang_loader.load"
"""Dotted name of the weight loader; a server accepts exactly the names that it was started with."""

STAGE_DIR = "ASYNCRL_STAGE_DIR"
MODEL_VERSION = "ASYNCRL_MODEL_VERSION"

_REAPER = Path(__file__).with_name("reaper.py")
REAPED_S = 5.0  # what is killed is gone in a moment, unless a device driver holds it


@dataclass(frozen=True)
class LaunchSpec:
    """What a server is started with.

    Attributes:
        model_dir: Hugging Face directory; the weights of version `model_version`.
        host, port: address to listen on.
        stage_dir: where the host puts weights for the loader inside the server.
        dtype: of the weights, the wire's.
        compute_dtype: arithmetic of the local engine.
        python: of SGLang's environment; None: this one.
        on_cpu: start SGLang without a device.
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
    return Command(tuple(argv), {})


def _sglang(spec: LaunchSpec) -> Command:
    argv = [
        str(spec.python or sys.executable), "-m", "sglang.launch_server",
        *_shared_flags(spec),
        "--dtype", spec.dtype,
        "--random-seed", str(spec.seed),
        "--tp-size", str(spec.tp),
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


def _shared_flags(spec: LaunchSpec) -> tuple[str, ...]:
    return (
        "--model-path", str(spec.model_dir),
        "--host", spec.host,
        "--port", str(spec.port),
        "--max-running-requests", str(spec.max_running_requests),
        "--context-length", str(spec.context_length),
        "--weight-version", spec.model_version,
        "--custom-weight-loader", LOADER,
        *(("--api-key", spec.api_key) if spec.api_key else ()),
    )  # fmt: skip


ENGINES: Mapping[str, Callable[[LaunchSpec], Command]] = MappingProxyType({"local": _local, "sglang": _sglang})
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


class ServerProcess:
    """One life of a server process, from start to stop. On Linux its process is the reaper's, the leader of the
    server's group, which ends as the server does once nothing of it is left."""

    def __init__(self, name: str, what: Command, log: Path, *, stop_timeout_s: float = 20.0) -> None:
        self.name, self.log = name, log
        self._command, self._stop_timeout_s = what, stop_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = asyncio.Event()
        self._lifeline: int | None = None  # the reaper sees its end, and so ours

    @property
    def pid(self) -> int | None:
        """Process id, None before the start."""
        return None if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal, None while it runs or before it was started."""
        return None if self._process is None else self._process.poll()

    async def start(self, is_ready: Callable[[], Awaitable[object]], timeout_s: float) -> None:
        """Start the process and wait until `is_ready` answers instead of raising ServerUnavailable.

        Raises:
            ServerUnavailable: the process ended, or `timeout_s` passed; the end of its log is in the message.
        """
        self._launch()
        deadline, pause_s = time.monotonic() + timeout_s, 0.05
        while True:
            try:
                await is_ready()
                return
            except ServerUnavailable as not_yet:
                reason = not_yet
            if self.exit_code is not None:
                raise ServerUnavailable(
                    f"{self.name} ended with exit code {self.exit_code} before it answered. {self.log} ends with:\n"
                    f"{self.log_tail()}"
                )
            if time.monotonic() > deadline:
                await self.stop()
                raise ServerUnavailable(
                    f"{self.name} did not answer within inference.start_timeout_s = {timeout_s:g} s ({reason}) and was "
                    f"stopped. {self.log} ends with:\n{self.log_tail()}"
                )
            await waits.pause("host waits for its server to start", pause_s)
            pause_s = min(1.0, pause_s * 1.5)

    def _launch(self) -> None:
        """Not by asyncio, which kills its children when a loop is closed over them: that would be the reaper."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        argv = list(self._command.argv)
        if sys.platform == "linux":
            argv = [sys.executable, "-I", "-S", str(_REAPER), *argv]
        with contextlib.ExitStack() as stack:
            output = stack.enter_context(self.log.open("ab"))
            theirs, self._lifeline = os.pipe()
            stack.callback(os.close, theirs)
            process = self._process = subprocess.Popen(
                argv,
                stdin=theirs,
                stdout=output,
                stderr=output,
                env={**os.environ, **self._command.env},
                start_new_session=True,
            )
        loop = asyncio.get_running_loop()

        def wait() -> None:
            process.wait()
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(self._ended.set)

        threading.Thread(target=wait, name=f"waits for {self.name}", daemon=True).start()

    async def ended(self) -> int:
        """Wait for the process to end; its exit code."""
        assert self._process is not None, "the server was not started"
        await self._ended.wait()
        return self._process.wait()

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL when that does not help; all that the server started ends too. Repeating is harmless.

        The first is for the server alone, which ends its children in order: SGLang takes one that was signalled beside
        it for a crash, and looks into that for seconds.
        """
        if self._process is None:
            return
        if self.exit_code is None:
            self._process.terminate()  # the reaper passes it on
            await self._ends_within(self._stop_timeout_s)
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
            if sys.platform == "linux":
                await self._ends_within(REAPED_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._ended.wait()

    async def _ends_within(self, seconds: float) -> None:
        with waits.timed(f"waiting for {self.name} to stop"), contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()

    def log_tail(self, num_chars: int = 2000) -> str:
        """The end of the log, for messages."""
        try:
            return self.log.read_text(errors="replace")[-num_chars:].strip()
        except OSError as error:
            return f"(no log: {error})"
