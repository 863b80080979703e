"""`asyncrl gateway` as a process: killed amid sessions it costs a retry, and stopped it leaves nothing in flight."""

import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from asyncrl.run.connections import URL
from asyncrl.run.handover import revealed
from buffer import ReplayBuffer
from buffer.answers import Leased
from buffer.versions import label, pack
from tests.support.fast_engine import Settings, running_engine
from tests.support.inference_servers import ROOT, environment, wait_for
from tests.support.redis_server import RedisServer, running_redis
from tests.support.tiny_policy import write_tiny_model
from tests.support.worker_process import worker_config
from weightsync.log import open_log

VERSION = pack(1, 0)


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


@contextmanager
def gateway_process(config: Path, redis_url: str, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A started gateway and its address, killed at the end of the block if it still runs."""
    command = [sys.executable, "-m", "asyncrl", "gateway", str(config)]
    variables = {**environment(), URL: redis_url}
    variables.pop("ASYNCRL_GATEWAY_KEY", None)
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, env=variables)
    try:

        def ready() -> str:
            assert process.poll() is None, log.read_text()
            return next((line.split()[1] for line in log.read_text().splitlines() if line.startswith("ready ")), "")

        wait_for("the gateway listens", lambda: bool(ready()), 60.0)
        yield process, ready()
    finally:
        process.kill()
        process.wait()


def play(url: str, key: str, session: dict[str, Any]) -> None:
    """Two turns of a harness, and the reward."""
    messages = list(session["messages"])
    for _ in range(2):
        reply = httpx.post(
            f"{session['base_url']}/chat/completions",
            json={"model": "any", "messages": messages},
            headers={"authorization": "Bearer anything"},
            timeout=30.0,
        )
        assert reply.status_code == 200, reply.text
        messages += [reply.json()["choices"][0]["message"], {"role": "user", "content": "sort 21"}]
    ended = httpx.post(
        f"{url}/sessions/{session['id']}/end", json={"reward": 1}, headers={"authorization": f"Bearer {key}"}
    )
    assert ended.json()["turns"] == 2


def test_a_gateway_that_is_killed_loses_its_open_sessions_and_nothing_else(redis: RedisServer, tmp_path: Path) -> None:
    model_dir = write_tiny_model(tmp_path / "model")
    config = worker_config(
        tmp_path,
        "killed",
        model_dir,
        rollout={"n": 2, "max_new_tokens": 16, "temperature": 1.0},
        inference={"context_length": 256},
        buffer={"claim_s": 3.0, "renew_every_s": 0.5},
        gateway={"port": 0},
    )
    file = tmp_path / "run.yaml"
    file.write_text(_as_yaml(config))
    buffer = ReplayBuffer.connect(redis.url, config.run.name, config.buffer, config.staleness)
    buffer.recover("nonce", None, number=0, limit=1, groups_per_version=1)
    weights = open_log(redis.url, config.run.name)
    with running_engine(Settings(tokens_per_s=10_000.0, answer_tokens=8, label=label(VERSION))) as engine:
        weights.register("server-0", "life", engine, lease_s=600.0)
        weights.put_ack("server-0", "life", VERSION, 77, "serving")
        with gateway_process(file, redis.url, tmp_path / "first.log") as (process, url):
            key_file = config.run.directory / "gateway" / "key"
            key = key_file.read_text()
            assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
            session = _reserve(url, key)
            play(url, key, session)
            second = _reserve(url, key)
            assert (second["ordinal"], second["episode"]) == (session["ordinal"], 1 - session["episode"])
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert buffer.counts()["in_flight"] == 1
        with gateway_process(file, redis.url, tmp_path / "second.log") as (process, url):
            assert key_file.read_text() == key, "runners keep their key"
            wait_for("its claim expires", lambda: bool(buffer.sweep().expired or buffer.counts()["waiting"]), 20.0)
            for _ in range(2):
                again = _reserve(url, key)
                assert again["ordinal"] == session["ordinal"]
                play(url, key, again)
            wait_for("the group is in", lambda: buffer.counts()["ready"] == 1, 20.0)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30.0) == 0
        leased = buffer.lease(1, 0, 0, 1)
        assert isinstance(leased, Leased)
        group = buffer.fetch(leased.entries[0])
        assert [len(member.rows) for member in group.trajectories] == [1, 1]
        assert {span.version for member in group.trajectories for span in member.rows[0].spans} == {VERSION}
        assert {span.digest for member in group.trajectories for span in member.rows[0].spans} == {77}
    for name in ("first.log", "second.log"):
        assert key not in (tmp_path / name).read_text()
        assert second["api_key"] not in (tmp_path / name).read_text()
    assert buffer.audit().ok
    weights.close()
    buffer.close()


def _reserve(url: str, key: str) -> dict[str, Any]:
    reply = httpx.post(f"{url}/sessions", json={"wait_s": 20}, headers={"authorization": f"Bearer {key}"}, timeout=30.0)
    assert reply.status_code == 201, reply.text
    return dict(reply.json())


def _as_yaml(config: Any) -> str:
    return str(yaml.safe_dump(revealed(config)))
