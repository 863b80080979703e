"""Real parts of a rollout cluster for integration tests: publisher, version log, hosts, local servers, a fleet."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from asyncrl import waits
from asyncrl.inference.activation import Kv, Pausing
from asyncrl.inference.board import LogBoard
from asyncrl.inference.client import ServerClient
from asyncrl.inference.clients import make_client
from asyncrl.inference.fleet import Fleet, FleetLimits
from asyncrl.inference.host import Host, HostSettings
from asyncrl.inference.launcher import LaunchSpec, reserve_port
from asyncrl.inference.protocol import vocab_size
from asyncrl.inference.server import AdoptedServer, ManagedServer, StartedServer
from asyncrl.inference.stage_dir import StageDir
from buffer.versions import pack
from tests.support.tiny_policy import write_tiny_model
from weightsync.config import WeightsyncConfig
from weightsync.log import VersionLog, open_log
from weightsync.manifest import Manifest
from weightsync.publisher import WeightPublisher
from weightsync.receiver import Receiver
from weightsync.shard import shards_of
from weightsync.transport import Transport, open_transport

CONTEXT = 64


class Trainer:
    """The weights of a tiny model, and their publisher."""

    def __init__(
        self, model_dir: Path, log: VersionLog, transport: Transport, config: WeightsyncConfig, branch: int
    ) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
        self.branch, self.number = branch, 0
        self.publisher = WeightPublisher(
            Manifest.from_model_dir(model_dir, "bfloat16"),
            lambda: shards_of(self.model.named_parameters(), "bfloat16"),
            log,
            transport,
            config,
        )
        self.publisher.publish_origin(model_dir)
        self.publisher.claim(branch)

    def step(self, scale: float = 1e-2) -> int:
        """Change the weights a little and publish them; the packed version."""
        self.number += 1
        generator = torch.Generator().manual_seed(self.number)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)
        version = pack(self.branch, self.number)
        self.publisher.publish(version)
        return version


class RolloutCluster:
    """A version log and parts, in folders or in Redis, and what runs over them."""

    def __init__(
        self, directory: Path, redis_url: str | None = None, *, model_dir: Path | None = None, **weightsync: Any
    ) -> None:
        """`weightsync`: settings of it, by name."""
        self.directory, self.redis_url, self.engine = directory, redis_url, "local"
        self.model_dir = model_dir or write_tiny_model(directory / "model")
        parts = str(directory / "parts") if redis_url is None else None
        self.config = WeightsyncConfig(directory=parts, stage_dir=str(directory / "stage"), **weightsync)
        self.log = open_log(redis_url or str(directory / "log"), "run")
        self.reports: dict[str, Mapping[str, float | str]] = {}
        self.servers: dict[str, StartedServer] = {}
        self.host_settings = HostSettings(max_restarts=3, renew_every_s=0.5)

    def trainer(self, branch: int = 1) -> Trainer:
        """A trainer of the run."""
        return Trainer(self.model_dir, self.log, self.transport(), self.config, branch)

    def transport(self) -> Transport:
        """What moves the parts."""
        return open_transport(self.config, self.redis_url or "", "run")

    def kill_server(self, name: str) -> None:
        """SIGKILL to the server and its children; its host finds out."""
        self._signal(name, signal.SIGKILL)

    def stop_server(self, name: str) -> None:
        """It does nothing any more, and its connections stay."""
        self._signal(name, signal.SIGSTOP)

    def continue_server(self, name: str) -> None:
        """It goes on where it stopped."""
        self._signal(name, signal.SIGCONT)

    def _signal(self, name: str, number: signal.Signals) -> None:
        process = self.servers[name]._process
        assert process is not None
        assert process.pid is not None
        os.killpg(process.pid, number)

    def client(self, url: str) -> ServerClient:
        """A client that knows the model's vocabulary."""
        return make_client(self.engine, url, vocab_size=vocab_size(self.model_dir))

    def server(self, name: str, engine: str = "local", **spec: Any) -> StartedServer:
        """A server that is not started yet; `spec`: how it differs from the others, by LaunchSpec's names."""

        def make_spec(port: int, stage_dir: Path) -> LaunchSpec:
            usual = LaunchSpec(self.model_dir, "127.0.0.1", port, stage_dir, "bfloat16", 64, CONTEXT, 0)
            return replace(usual, **spec)

        self.servers[name] = StartedServer(
            name,
            engine=engine,
            make_spec=make_spec,
            reserve_port=lambda: reserve_port("127.0.0.1", 0),
            host="127.0.0.1",
            log=self.directory / f"{name}.log",
            start_timeout_s=60.0 if engine == "local" else 300.0,
        )
        return self.servers[name]

    def host(
        self, name: str = "server-0", kv: Kv = "recompute", *, engine: str = "local", lent: bool = False, **spec: Any
    ) -> Host:
        """A host of a server; `engine`, `spec`: as for `server`; `lent`: on a device of the trainer's."""
        stage = StageDir.of_started(self.config.stage_dir, self.directory, name)
        self.engine = engine
        server = self.server(name, engine, keeps_kv=kv == "keep", **spec)
        return self._host(server, stage, kv=kv, lent=lent, num_ranks=spec.get("tp", 1))

    def adopting_host(self, name: str, url: str) -> Host:
        """A host of a server that the test runs, which has to know the stage directory `stage_of(name)`."""
        stage = StageDir.of_adopted(self.config.stage_dir, self.directory, name)
        server = AdoptedServer(name, url, wait_s=60.0)
        return self._host(server, stage, kv="recompute", lent=False, num_ranks=1)

    def stage_of(self, name: str) -> Path:
        """Where an adopted server's weights will lie."""
        return Path(str(self.config.stage_dir)) / name

    def _host(self, server: ManagedServer, stage: StageDir, *, kv: Kv, lent: bool, num_ranks: int) -> Host:
        name = server.name

        def make_receiver(incarnation: str, url: str, stage_dir: Path) -> Receiver:
            return Receiver(
                self.log,
                self.transport(),
                self.config,
                server=name,
                incarnation=incarnation,
                url=url,
                stage_dir=stage_dir,
                model_dir=self.model_dir,
                shared_dir=stage.shared,
                lent=lent,
            )

        return Host(
            server,
            stage=stage,
            make_client=self.client,
            make_receiver=make_receiver,
            pausing=Pausing(kv=kv, num_ranks=num_ranks, deadline_s=self.config.activate_deadline_s),
            settings=self.host_settings,
            report=lambda name, facts: self.reports.__setitem__(name, facts),
        )

    @asynccontextmanager
    async def running(self, *hosts: Host) -> AsyncIterator[Fleet]:
        """Hosts, and a fleet over their servers, during the block."""
        stop = asyncio.Event()
        fleet = Fleet(LogBoard(self.log), self.client, FleetLimits(request_timeout_s=30.0, server_wait_s=60.0))
        tasks = [asyncio.create_task(part.run(stop)) for part in (*hosts, fleet)]
        try:
            yield fleet
        finally:
            stop.set()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            await fleet.close()
        for result in done:
            if isinstance(result, BaseException):
                raise result

    async def serving(self, version: int, name: str = "server-0", *, deadline_s: float = 60.0) -> str:
        """Wait until the server has acknowledged `version` as served; its incarnation."""

        def attempt() -> str | None:
            ack = self.log.acks().get(name)
            return ack.incarnation if ack is not None and (ack.version, ack.state) == (version, "serving") else None

        return await waits.until(
            "test",
            attempt,
            why=lambda: f"{self.log.servers()} {self.log.acks()} {self.reports}",
            wake=self.log.watch(("server",)).wait,
            deadline_s=deadline_s,
        )
