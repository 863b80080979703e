"""Servers that a host starts, and servers that somebody else runs."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncrl.errors import ServerError
from asyncrl.inference import launcher
from asyncrl.inference.client import ServerClient
from asyncrl.inference.launcher import Command, LaunchSpec, reserve_port
from asyncrl.inference.server import AdoptedServer, StartedServer
from tests.support.event_loop import in_event_loop
from tests.support.fake_sglang import VOCAB, running_fake
from tests.unit.asyncrl.inference.test_launcher import SERVER


@pytest.fixture
def a_server_of_the_standard_library(monkeypatch: pytest.MonkeyPatch) -> None:
    engines: dict[str, Callable[[LaunchSpec], Command]] = {
        "plain": lambda spec: Command((sys.executable, "-c", SERVER, str(spec.port)), {})
    }
    monkeypatch.setattr(launcher, "ENGINES", engines)


@pytest.mark.usefixtures("a_server_of_the_standard_library")
@in_event_loop
async def test_a_started_server_has_one_life_after_another(tmp_path: Path) -> None:
    specs: list[LaunchSpec] = []

    def make_spec(port: int, stage_dir: Path) -> LaunchSpec:
        specs.append(LaunchSpec(tmp_path, "127.0.0.1", port, stage_dir, "bfloat16", 8, 64, 0))
        return specs[-1]

    server = StartedServer(
        "server-0",
        engine="plain",
        make_spec=make_spec,
        reserve_port=lambda: reserve_port("127.0.0.1", 0),
        host="127.0.0.1",
        log=tmp_path / "server.log",
        start_timeout_s=20.0,
    )
    for life in range(2):
        url = server.url()
        client = ServerClient(url, vocab_size=VOCAB)
        await server.begin(url, tmp_path / str(life), client)
        assert specs[life].url == url
        ended = asyncio.create_task(server.ended())
        assert server._process is not None
        assert server._process.pid is not None
        os.killpg(server._process.pid, signal.SIGKILL)
        assert await ended == -signal.SIGKILL
        await client.close()
        await server.end()
        await server.end()


@in_event_loop
async def test_an_adopted_server_is_waited_for_and_left_running() -> None:
    with running_fake() as fake:
        server = AdoptedServer("adopted-0", fake.url, wait_s=10.0)
        client = ServerClient(server.url(), vocab_size=VOCAB)
        await server.begin(fake.url, Path(), client)
        await server.end()
        await client.model_info()
        await client.close()
    with pytest.raises(ServerError, match=r"inference\.urls"):
        await AdoptedServer("adopted-0", fake.url, wait_s=0.0).begin(fake.url, Path(), client)
