"""Real inference servers for tests: the local one, and SGLang where an environment with it is."""

import base64
import contextlib
import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import httpx
import torch

from tests.support import weight_loader
from tests.support.forkserver import forkserver
from tests.support.ports import reserved_ports
from tests.support.sglang_python import warm_python

ROOT = Path(__file__).resolve().parents[2]
CONTEXT = 4096
HEALTH_S = 1


def payload(named_tensors: Sequence[tuple[str, torch.Tensor]]) -> str:
    """As SGLang takes it: base64 of a plain pickle."""
    return base64.b64encode(pickle.dumps(list(named_tensors))).decode()


class Process(Protocol):
    """What tests need of a server's process: subprocess.Popen, ForkedServer."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class ForkedServer:
    """The local server's `main` in a process forked from one that has imported torch already: a tenth of a start."""

    def __init__(self, argv: list[str]) -> None:
        context = forkserver()
        mine, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_run_local_server, args=(argv, theirs), daemon=True)
        self._process.start()
        theirs.close()
        assert self._process.pid is not None
        self.pid = self._process.pid
        with os.fdopen(os.dup(mine.fileno())) as output:
            self.first_line = output.readline()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("local server", timeout or 0)
        return self._process.exitcode

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def _run_local_server(argv: list[str], output: Connection) -> None:
    from asyncrl.inference import local_server

    os.dup2(output.fileno(), 1)
    sys.exit(local_server.main(argv))


@dataclass
class InFlight:
    """A streamed request that has put out something; `chunks` are what came so far."""

    chunks: list[dict[str, Any]] = field(default_factory=list)
    started: threading.Event = field(default_factory=threading.Event)
    result: "Future[dict[str, Any]]" = field(default_factory=Future)

    def final(self, timeout_s: float = 60.0) -> dict[str, Any]:
        return self.result.result(timeout_s)

    def goes_on(self) -> None:
        """Waits until more has come out."""
        before = len(self.chunks)
        wait_for("a stream goes on", lambda: len(self.chunks) > before or self.result.done())


@dataclass
class InferenceServer:
    """A running server and how to talk to it."""

    kind: str
    url: str
    process: Process
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        limits = httpx.Limits(max_keepalive_connections=0)
        self.http = httpx.Client(base_url=self.url, headers=self.headers, timeout=60, limits=limits)
        self.pool = ThreadPoolExecutor(16)

    @property
    def many(self) -> int:
        """Tokens that take a while: a request for so many is still running when the test looks."""
        return 3500 if self.kind == "local" else 1500

    def post(self, path: str, body: object = None, **options: Any) -> httpx.Response:
        return self.http.post(path, json={} if body is None else body, **options)

    def get(self, path: str) -> httpx.Response:
        return self.http.get(path)

    def generate(self, ids: Sequence[int] = (3, 1, 4, 1, 5), num: int = 8, **fields: Any) -> dict[str, Any]:
        """One answer; sampling parameters are given by name, other fields of the body as `body=`."""
        response = self.post("/generate", self.body(ids, num, **fields))
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    @staticmethod
    def body(ids: Sequence[int], num: int, *, body: dict[str, Any] | None = None, **params: Any) -> dict[str, Any]:
        return {
            "input_ids": list(ids),
            "sampling_params": {"max_new_tokens": num, "temperature": 0.0, "ignore_eos": True, **params},
            "return_logprob": True,
            **(body or {}),
        }

    def stream(self, ids: Sequence[int], num: int, **fields: Any) -> Iterator[dict[str, Any]]:
        """The chunks of a streamed answer."""
        body = {**self.body(ids, num, **fields), "stream": True}
        with self.http.stream("POST", "/generate", json=body) as response:
            for line in response.iter_lines():
                if line == "data: [DONE]":
                    return
                if line.startswith("data: "):
                    yield json.loads(line[6:])

    def start(self, ids: Sequence[int] = (3, 1, 4), num: int = 400, **fields: Any) -> InFlight:
        """Starts a streamed request and returns once it runs."""
        flight = InFlight()

        def follow() -> None:
            try:
                for chunk in self.stream(ids, num, **fields):
                    flight.chunks.append(chunk)
                    flight.started.set()
                flight.result.set_result(flight.chunks[-1])
            except BaseException as error:
                flight.result.set_exception(error)
                flight.started.set()

        self.pool.submit(follow)
        assert flight.started.wait(60)
        return flight

    def later(self, call: Callable[[], Any]) -> "Future[Any]":
        """Makes a call in a thread."""
        return self.pool.submit(call)

    def running(self) -> tuple[int, int]:
        load = self.get("/v1/loads").json()["loads"][0]
        return load["num_running_reqs"], load["num_waiting_reqs"]

    def version(self) -> str:
        return str(self.get("/model_info").json()["weight_version"])

    def checksum(self) -> str:
        response = self.post("/weights_checker", {"action": "checksum"})
        return json.dumps(response.json()["per_engine_checksum"])

    def pause(self, mode: str) -> None:
        assert self.post("/pause_generation", {"mode": mode}).status_code == 200

    def resume(self) -> None:
        assert self.post("/continue_generation", {"torch_empty_cache": False}).status_code == 200

    def update(self, named: Sequence[tuple[str, torch.Tensor]], **fields: Any) -> httpx.Response:
        """begin, one update_weights_from_tensor, end; returns the update's own answer."""
        assert self.post("/begin_weight_update", {"selector": "all"}).status_code == 200
        response = self.post("/update_weights_from_tensor", {"serialized_named_tensors": [payload(named)], **fields})
        assert self.post("/end_weight_update", {}).status_code == 200
        return response

    def reset(self, model_dir: Path) -> None:
        """Back to how it began: nothing paused, running or open, and the weights of the directory."""
        self.resume()
        self.post("/end_weight_update", {})
        self.post("/abort_request", {"rid": "", "abort_all": True})
        assert self.post("/flush_cache?timeout=30").status_code == 200
        assert self.post(
            "/update_weights_from_disk", {"model_path": str(model_dir), "weight_version": "0.0"}
        ).is_success
        # SGLang answers other routes a moment before it counts itself as started.
        wait_for("the server is healthy", lambda: self.get("/health").status_code == 200)

    def stop(self) -> int:
        self.http.close()
        self.process.terminate()
        try:
            code = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.pool.shutdown(wait=True)
        return code


def wait_for(what: str, condition: Callable[[], bool], deadline_s: float = 20.0) -> None:
    """Looks again and again until it is so; an event paces it, since a server cannot call us."""
    pace, start = threading.Event(), time.monotonic()
    while not condition():
        assert time.monotonic() - start < deadline_s, f"not within {deadline_s} s: {what}"
        pace.wait(0.02)


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def start_local(model_dir: Path, *flags: str, headers: dict[str, str] | None = None) -> InferenceServer:
    """A local server on a free port, in float32."""
    process = ForkedServer(local_flags(model_dir, *flags))
    line = process.first_line
    assert line.startswith("ready http://"), f"the server ended with {process.wait(10)}"
    return InferenceServer("local", line.split()[1], process, headers or {})


def local_flags(model_dir: Path, *flags: str) -> list[str]:
    """The local server's command line in tests."""
    return [
        *("--model-path", str(model_dir), "--port", "0", "--dtype", "float32", "--weight-version", "0.0"),
        *("--custom-weight-loader", weight_loader.NAME, "--max-running-requests", "16"),
        *("--context-length", str(CONTEXT), "--health-timeout-s", str(HEALTH_S), *flags),
    ]


def start_sglang(model_dir: Path, *flags: str, headers: dict[str, str] | None = None) -> InferenceServer:
    """SGLang on the CPU, on a free port, in float32."""
    with reserved_ports(1) as (port,):
        return _start_sglang_at(port, model_dir, flags, headers or {})


def _start_sglang_at(port: int, model_dir: Path, flags: Sequence[str], headers: dict[str, str]) -> InferenceServer:
    command = [
        *(str(warm_python()), "-m", "sglang.launch_server", "--model-path", str(model_dir)),
        *("--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--attention-backend", "torch_native"),
        *("--sampling-backend", "pytorch", "--grammar-backend", "none", "--mem-fraction-static", "0.1"),
        *("--max-total-tokens", str(4 * CONTEXT), "--max-running-requests", "16", "--context-length", str(CONTEXT)),
        *("--dtype", "float32", "--weight-version", "0.0", "--custom-weight-loader", weight_loader.NAME, *flags),
    ]
    switches = {"SGLANG_USE_CPU_ENGINE": "1", "SGLANG_HEALTH_CHECK_TIMEOUT": str(2 * HEALTH_S)}
    process = subprocess.Popen(command, text=True, env={**environment(), **switches}, cwd=ROOT)
    server = InferenceServer("sglang", f"http://127.0.0.1:{port}", process, headers)

    def answers() -> bool:
        assert process.poll() is None, f"SGLang ended with {process.returncode}"
        with contextlib.suppress(httpx.TransportError):
            return server.get("/model_info").status_code == 200
        return False

    wait_for("SGLang answers", answers, 300)
    return server


STARTERS = {"local": start_local, "sglang": start_sglang}


@contextmanager
def inference_server(
    kind: str, model_dir: Path, *flags: str, headers: dict[str, str] | None = None
) -> Iterator[InferenceServer]:
    """A server for the block."""
    server = STARTERS[kind](model_dir, *flags, headers=headers)
    try:
        yield server
    finally:
        server.stop()
