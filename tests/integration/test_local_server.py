"""The local server as a process: how it begins, serves, refuses, drains and ends."""

import concurrent.futures
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from asyncrl.inference import local_server
from asyncrl.inference.local_engine import kernels
from tests.support.inference_servers import ROOT, InferenceServer, environment, local_flags, start_local, wait_for
from tests.support.local_models import save_model

COMMAND = [sys.executable, "-m", "asyncrl.inference.local_server"]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), "qwen3")


@pytest.fixture
def server(model_dir: Path) -> Iterator[InferenceServer]:
    started = start_local(model_dir, "--max-queued-requests", "4", "--max-queued-tokens", "3000", "--drain-s", "20")
    yield started
    started.stop()


def test_the_command_serves_on_a_free_port_that_it_prints_and_ends_with_its_parent(model_dir: Path) -> None:
    flags = local_flags(model_dir, "--deterministic", "--dtype", "bfloat16", "--compute-dtype", "float32")
    script = (
        "import os, subprocess, sys\n"
        "command = [*sys.argv[1:], '--parent-pid', str(os.getpid())]\n"
        "server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)\n"
        "print(server.pid, server.stdout.readline(), end='', flush=True)\n"
        "input()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, *COMMAND, *flags],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=ROOT,
    )
    assert parent.stdout is not None
    pid, ready, url = parent.stdout.readline().split()
    assert ready == "ready"
    info = httpx.get(f"{url}/model_info", timeout=30).json()
    assert info["model_type"] == "qwen3"
    state = httpx.get(f"{url}/server_info", timeout=30).json()["internal_states"][0]
    assert (state["compute_dtype"], state["decode"]) == ("float32", "numba" if kernels.HAVE_NUMBA else "torch")
    parent.kill()
    parent.wait()

    def gone() -> bool:
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
        # A killed parent's children wait for whoever reaps them: a zombie has ended too.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"

    wait_for("the server ended with its parent", gone)


def test_a_port_in_use_is_one_clear_message_and_exit_code_2(
    model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert local_server.main([*local_flags(model_dir), "--port", port]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"cannot listen on 127.0.0.1:{port}")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("flaw", ["no directory", "another architecture"])
def test_a_model_that_cannot_be_served_is_one_clear_message_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flaw: str
) -> None:
    if flaw == "another architecture":
        (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert local_server.main(local_flags(tmp_path)) == 2
    said = capsys.readouterr().err
    assert ("config.json" in said) or ("gpt2" in said)
    assert len(said.splitlines()) == 1


def test_sigterm_lets_running_requests_end_and_exits_0(server: InferenceServer) -> None:
    flight = server.start(num=300)
    os.kill(server.process.pid, signal.SIGTERM)
    assert len(flight.final()["output_ids"]) == 300
    assert server.process.wait(30) == 0


def test_sigterm_ends_requests_that_outlast_the_drain_with_what_they_have(model_dir: Path) -> None:
    server = start_local(model_dir, "--drain-s", "0.1")
    flight = server.start(num=server.many)
    os.kill(server.process.pid, signal.SIGTERM)
    final = flight.final()
    assert final["meta_info"]["finish_reason"]["type"] == "abort"
    assert 0 < len(final["output_ids"]) < server.many
    assert server.process.wait(30) == 0
    server.stop()


def test_sigterm_during_a_pause_answers_everyone_and_exits_0(server: InferenceServer) -> None:
    flight = server.start(num=server.many)
    server.pause("in_place")
    late = server.later(lambda: server.post("/generate", server.body([1], 2)))
    with pytest.raises(TimeoutError):
        late.result(0.3)
    os.kill(server.process.pid, signal.SIGTERM)
    assert flight.final()["meta_info"]["finish_reason"]["type"] == "abort"
    assert late.result(30).status_code == 503
    assert server.process.wait(30) == 0


def test_more_than_may_wait_is_refused_with_503_and_a_reason(server: InferenceServer) -> None:
    server.pause("in_place")
    waiting = [server.later(lambda: server.generate([1], 2)) for _ in range(4)]

    def held() -> int:
        state = server.get("/server_info").json()["internal_states"][0]
        return int(state["held_requests"])

    wait_for("four requests wait", lambda: held() == 4)
    refused = server.post("/generate", server.body([1], 2))
    assert refused.status_code == 503
    assert "4 requests wait" in refused.json()["error"]["message"]
    server.resume()
    assert all(len(one.result(60)["output_ids"]) == 2 for one in waiting)
    too_many = [[5] * 2000] * 2
    response = server.post("/generate", {"input_ids": too_many, "sampling_params": {"max_new_tokens": 2}})
    assert response.status_code == 503
    assert "--max-queued-tokens is 3000" in response.json()["error"]["message"]
    assert server.running() == (0, 0)


def test_an_id_outside_the_vocabulary_is_refused_where_sglang_on_cpu_would_die(server: InferenceServer) -> None:
    response = server.post("/generate", server.body([1, 51], 2))
    assert response.status_code == 400
    assert "outside the vocabulary" in response.json()["error"]["message"]
    assert len(server.generate([1, 50], 2)["output_ids"]) == 2


def test_a_seed_fixes_an_answer_whatever_else_runs(server: InferenceServer) -> None:
    ids = [7, 8, 9]
    alone = server.generate(ids, 40, temperature=1.0, sampling_seed=99)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        others = [pool.submit(server.generate, [n], 60, temperature=1.0, sampling_seed=n) for n in range(3)]
        among = pool.submit(server.generate, ids, 40, temperature=1.0, sampling_seed=99).result(60)
        assert all(other.result(60) for other in others)
    assert among["output_ids"] == alone["output_ids"]
    assert among["meta_info"]["output_token_logprobs"] == alone["meta_info"]["output_token_logprobs"]


def test_released_memory_refuses_requests_until_it_is_taken_again(server: InferenceServer) -> None:
    before = server.generate([1, 2], 5)["output_ids"]
    server.post("/release_memory_occupation", {})
    response = server.post("/generate", server.body([1, 2], 5))
    assert (response.status_code, "resume_memory_occupation" in response.text) == (503, True)
    assert server.get("/server_info").json()["internal_states"][0]["kv_cache_bytes"] == 0
    server.post("/resume_memory_occupation", {})
    assert server.generate([1, 2], 5)["output_ids"] == before


def test_odd_requests_are_answered_and_the_routes_are_listed(server: InferenceServer) -> None:
    assert server.get("/nowhere").status_code == 404
    assert server.get("/generate").status_code == 405
    broken = server.http.post("/generate", content=b"{", headers={"content-type": "application/json"})
    assert (broken.status_code, "not JSON" in broken.json()["error"]["message"]) == (400, True)
    assert server.post("/generate", [1]).status_code == 400
    assert list(server.stream([1, 51], 2)) == [
        {"error": {"message": server.post("/generate", server.body([1, 51], 2)).json()["error"]["message"]}}
    ]
    assert "/begin_weight_update" in server.get("/openapi.json").json()["paths"]
    assert server.post("/weights_checker", {"action": "reset_tensors"}).status_code == 400
