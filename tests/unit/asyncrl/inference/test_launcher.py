"""Server processes: how they are started, watched and ended."""

import itertools
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncrl.errors import PreflightError
from asyncrl.inference.client import ServerClient
from asyncrl.inference.errors import ServerUnavailable
from asyncrl.inference.key import KEY_VARIABLE
from asyncrl.inference.launcher import ENGINES, Command, LaunchSpec, command, reserve_port
from asyncrl.inference.local_server import parse_args
from asyncrl.inference.server_process import ServerProcess
from tests.support.event_loop import in_event_loop

SERVER = """
import http.server, json, signal, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        data = json.dumps({"model_path": "/m", "weight_version": "default"}).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(data))); self.end_headers()
        self.wfile.write(data)
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("listening", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def port() -> Iterator[int]:
    with reserve_port("127.0.0.1", 0) as reserved:
        yield reserved.number


def spec(tmp_path: Path, **changes: object) -> LaunchSpec:
    values: dict[str, object] = {
        "model_dir": tmp_path / "model", "host": "127.0.0.1", "port": 1234, "stage_dir": tmp_path / "stage",
        "dtype": "bfloat16", "max_running_requests": 8, "context_length": 64, "seed": 3,
    }  # fmt: skip
    return LaunchSpec(**{**values, **changes})  # type: ignore[arg-type]  # a table of fields by name


@pytest.mark.parametrize("engine", ["local", "sglang"])
def test_every_engine_gets_model_address_limits_loader_and_stage_directory(tmp_path: Path, engine: str) -> None:
    made = command(engine, spec(tmp_path, extra_args=("--log-level", "warning")))
    line = " ".join(made.argv)
    for flag in (
        f"--model-path {tmp_path / 'model'}", "--host 127.0.0.1", "--port 1234", "--dtype bfloat16",
        "--max-running-requests 8", "--context-length 64", "--custom-weight-loader weightsync.sglang_loader.load",
    ):  # fmt: skip
        assert flag in line
    assert line.endswith("--log-level warning")
    assert made.env["ASYNCRL_STAGE_DIR"] == str(tmp_path / "stage")
    assert made.env["ASYNCRL_MODEL_VERSION"] == "0.0"


def test_vllm_gets_the_same_under_its_own_names_and_the_routes_that_we_need(tmp_path: Path) -> None:
    made = command(
        "vllm", spec(tmp_path, python=Path("/venv/bin/python"), keeps_kv=True, extra_args=("--block-size", "8"))
    )
    line = " ".join(made.argv)
    assert line.startswith(f"/venv/bin/python -m vllm.entrypoints.cli.main serve {tmp_path / 'model'} ")
    for flag in (
        "--host 127.0.0.1", "--port 1234", "--dtype bfloat16", "--max-num-seqs 8", "--max-model-len 64", "--seed 3",
        "--enable-scale-out", "--logprobs-mode processed_logprobs", "--no-async-scheduling", "--generation-config vllm",
        "--worker-extension-cls weightsync.vllm_worker.LoadsStaged",
    ):  # fmt: skip
        assert flag in line
    assert line.endswith("--block-size 8")
    assert made.env["ASYNCRL_STAGE_DIR"] == str(tmp_path / "stage")
    assert made.env["VLLM_SERVER_DEV_MODE"] == "1"
    on_gpu = command("vllm", spec(tmp_path, on_cpu=False))
    assert not {"--enforce-eager", "--no-async-scheduling"} & set(on_gpu.argv)
    assert "VLLM_CPU_KVCACHE_SPACE" not in on_gpu.env


def test_what_vllm_may_take_of_a_machine_without_a_gpu_is_the_users_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("vllm", spec(tmp_path)).env["VLLM_CPU_KVCACHE_SPACE"] == "1"
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    assert command("vllm", spec(tmp_path)).env["VLLM_CPU_KVCACHE_SPACE"] == "7"


def test_sglang_keeps_routed_experts_if_it_is_to_tell_of_them(tmp_path: Path) -> None:
    flag = "--enable-return-routed-experts"
    assert flag in command("sglang", spec(tmp_path, record_experts=True, on_cpu=False)).argv
    with pytest.raises(PreflightError, match="no GPU"):
        command("sglang", spec(tmp_path, record_experts=True))
    assert flag not in command("sglang", spec(tmp_path)).argv


def test_sglang_overlaps_no_steps_where_caches_outlive_updates(tmp_path: Path) -> None:
    """Or the first token that a request draws after an update is of the weights before it, under the new version."""
    assert "--disable-overlap-schedule" in command("sglang", spec(tmp_path, keeps_kv=True)).argv
    assert "--disable-overlap-schedule" not in command("sglang", spec(tmp_path)).argv


def test_sglang_on_a_cpu_and_on_shared_devices_gets_the_switches_it_needs(tmp_path: Path) -> None:
    on_cpu = command("sglang", spec(tmp_path, tp=2, python=Path("/venv/bin/python")))
    assert on_cpu.argv[0] == "/venv/bin/python"
    assert "--device cpu --attention-backend torch_native" in " ".join(on_cpu.argv)
    assert on_cpu.env["SGLANG_CPU_OMP_THREADS_BIND"] == "0|1"
    shared = command("sglang", spec(tmp_path, on_cpu=False, shares_devices=True))
    assert "--enable-weights-cpu-backup" in shared.argv
    assert "--device" not in shared.argv
    assert "--api-key" not in on_cpu.argv


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_a_started_server_asks_for_the_key_of_the_environment(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "k-secret")
    made = spec(tmp_path)
    argv, env = command(engine, made).argv, command(engine, made).env
    by_argument = {"local": None, "vllm": None, "sglang": "k-secret"}
    assert dict(itertools.pairwise(argv)).get("--api-key") == by_argument[engine]
    by_environment = {"local": env.get(KEY_VARIABLE), "vllm": env.get("VLLM_API_KEY"), "sglang": "k-secret"}
    assert by_environment[engine] == "k-secret"
    assert engine == "sglang" or not any("k-secret" in word for word in argv), "whoever can list processes reads it"
    assert "k-secret" not in repr(made)


def test_the_local_server_takes_its_key_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "k-secret")
    assert parse_args(["--model-path", "m"]).api_key == "k-secret"
    assert parse_args(["--model-path", "m", "--api-key", "other"]).api_key == "other"
    monkeypatch.delenv(KEY_VARIABLE)
    assert parse_args(["--model-path", "m"]).api_key is None


def test_a_port_in_use_is_refused_with_the_setting_to_change() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PreflightError, match=r"inference\.base_port"):
            reserve_port("127.0.0.1", port)
    with reserve_port("127.0.0.1", 0) as reserved:
        assert reserved.number > 0


@in_event_loop
async def test_a_server_is_ready_when_it_answers_and_ends_with_its_group(tmp_path: Path, port: int) -> None:
    process = ServerProcess("server-0", Command((sys.executable, "-c", SERVER, str(port)), {}), tmp_path / "s.log")
    client = ServerClient(f"http://127.0.0.1:{port}", vocab_size=10)
    await process.start(client.model_info, timeout_s=20)
    assert process.exit_code is None
    assert process.pid is not None
    assert os.getpgid(process.pid) == process.pid
    await process.stop()
    await process.stop()
    assert process.exit_code == -signal.SIGTERM
    assert "listening" in process.log_tail()
    await client.close()


@in_event_loop
async def test_a_server_that_ignores_sigterm_is_killed(tmp_path: Path, port: int) -> None:
    argv = (sys.executable, "-c", SERVER, str(port), "stubborn")
    process = ServerProcess("server-0", Command(argv, {}), tmp_path / "s.log", stop_timeout_s=0.1)
    client = ServerClient(f"http://127.0.0.1:{port}", vocab_size=10)
    await process.start(client.model_info, timeout_s=20)
    await process.stop()
    assert process.exit_code == -signal.SIGKILL
    assert await process.ended() == -signal.SIGKILL
    await client.close()


@in_event_loop
async def test_a_server_that_ends_before_it_answers_is_reported_with_the_end_of_its_log(
    tmp_path: Path, port: int
) -> None:
    argv = (sys.executable, "-c", "import sys; print('no such model'); sys.exit(3)")
    process = ServerProcess("server-0", Command(argv, {}), tmp_path / "s.log")
    client = ServerClient(f"http://127.0.0.1:{port}", vocab_size=10)
    with pytest.raises(ServerUnavailable, match=r"exit code 3(.|\n)*no such model"):
        await process.start(client.model_info, timeout_s=20)


@in_event_loop
async def test_a_server_that_never_answers_is_stopped_at_the_deadline(tmp_path: Path, port: int) -> None:
    argv = (sys.executable, "-c", "import signal; signal.pause()")
    process = ServerProcess("server-0", Command(argv, {}), tmp_path / "s.log")
    client = ServerClient(f"http://127.0.0.1:{port}", vocab_size=10)
    with pytest.raises(ServerUnavailable, match=r"inference\.start_timeout_s = 0\.2"):
        await process.start(client.model_info, timeout_s=0.2)
    assert process.exit_code == -signal.SIGTERM


PARENT = """
import asyncio, sys
from pathlib import Path
from asyncrl.inference.launcher import Command
from asyncrl.inference.server_process import ServerProcess
async def main():
    argv = (sys.executable, "-c", "import signal; signal.pause()")
    process = ServerProcess("s", Command(argv, {}), Path(sys.argv[1]))
    async def ready(): print(process.pid, flush=True)
    await process.start(ready, 10)
    await process.ended()
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_a_server_does_not_outlive_a_host_that_was_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "s.log")], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    server = int(parent.stdout.readline())
    watch = os.pidfd_open(server)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert select.select([watch], [], [], 10)[0], "the server is still there 10 s after its host was killed"
    os.close(watch)
