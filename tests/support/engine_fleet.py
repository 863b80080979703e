"""Real hosts, receivers, loaders and HTTP around small engines, and a trainer; what a server says is checked each time.

An engine is a FusedModel behind the routes of a FakeServer: what an update request does there is sglang_loader.load.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor

from asyncrl import waits
from asyncrl.inference.activation import Pausing
from asyncrl.inference.client import ServerClient
from asyncrl.inference.host import Host, HostSettings
from asyncrl.inference.stage_dir import StageDir
from tests.support.fake_sglang import VOCAB, FakeServer, running_fake
from tests.support.fused_model import FusedModel, bits, checkpoint, engine_of, same_bits, save_checkpoint, stepped
from weightsync import sglang_loader
from weightsync.acks import State
from weightsync.config import WeightsyncConfig
from weightsync.log.directory import DirectoryLog
from weightsync.manifest import Manifest
from weightsync.publisher import WeightPublisher
from weightsync.receiver import Receiver
from weightsync.shard import shards_of
from weightsync.transport.directory import DirectoryTransport
from weightsync.versions import label, pack

_LOADING = threading.Lock()  # the stage directory is in the environment, which all engines of a test share


class Engine:
    """One life of a server: a model, and the routes in front of it. `before`: done once, when the next update comes."""

    def __init__(self, world: "EngineFleet", server: FakeServer) -> None:
        self.world, self.server = world, server
        self.model: FusedModel = engine_of(world.model_dir)
        self.stage_dir = Path()
        self.before: Callable[[Engine], None] | None = None
        self.codes: list[int] = []
        server.loader = lambda _: self.load()

    def load(self) -> None:
        """What SGLang does with an update request."""
        before, self.before = self.before, None
        if before is not None:
            before(self)
        with _LOADING, patch.dict(os.environ, {sglang_loader.STAGE_DIR: str(self.stage_dir)}):
            sglang_loader.load(self.model, [("@weightsync", torch.empty(0, dtype=torch.uint8))])
        read = cast(Any, self.model).get_weights_by_name  # the loader put it there
        self.server.status = read("@weightsync")
        self.codes.append(self.server.status[0])

    def holds(self, weights: dict[str, Tensor]) -> bool:
        """Is every parameter what the engine's own load of these weights gives?"""
        fresh = FusedModel()
        fresh.load_weights(weights.items())
        return same_bits(bits(self.model), bits(fresh))


class CheckedReceiver(Receiver):
    """The real one. Whatever a server says that it serves must be what it holds, bit for bit."""

    world: "EngineFleet"
    engine: Engine
    name: str

    def acknowledge(self, version: int, digest: int, state: State = "serving") -> None:
        super().acknowledge(version, digest, state)
        self.world.says(self.name, version, state)
        if state == "serving" and not self.engine.holds(self.world.made[version]):
            self.world.lies.append(f"{self.name} serves {label(version)} with other weights")

    def withdraw(self, state: State = "updating", reason: str = "") -> None:
        super().withdraw(state, reason)
        self.world.says(self.name, None, state)

    def need(self, reason: str) -> None:
        super().need(reason)
        self.world.reasons.append(reason)


class Lives:
    """Gives each life of a server the next engine."""

    def __init__(self, name: str, engines: list[Engine]) -> None:
        self.name, self.engines = name, engines
        self.life = -1
        self.deaths: list[asyncio.Event] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def engine(self) -> Engine:
        return self.engines[min(self.life, len(self.engines) - 1)]

    def url(self) -> str:
        self.life += 1
        self.deaths.append(asyncio.Event())
        return self.engine.server.url

    async def begin(self, url: str, stage_dir: Path, client: ServerClient) -> None:
        self.engine.stage_dir, self._loop = stage_dir, asyncio.get_running_loop()
        await client.model_info()

    async def ended(self) -> int:
        await self.deaths[-1].wait()
        return -9

    def die(self) -> None:
        """The process of this life is gone; from any thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self.deaths[-1].set)

    async def end(self) -> None:
        """The routes go with the test."""


class EngineFleet:
    """The world of a test: one run, its trainer, any number of hosts on this machine."""

    def __init__(self, root: Path, stack: ExitStack, **settings: Any) -> None:
        self.root, self._stack = root, stack
        self.weights = checkpoint()
        self.model_dir = save_checkpoint(self.weights, root / "model")
        usual = {"directory": str(root / "parts"), "bucket_words": 600, "anchor_interval": 100}
        self.config = WeightsyncConfig.model_validate({**usual, **settings})
        self.log, self.transport = DirectoryLog(root / "log", "run"), DirectoryTransport(root / "parts", "run")
        self.made = {0: self.weights}
        self.said: list[tuple[str, int | None, str]] = []
        self.said_last: dict[str, tuple[int | None, str]] = {}
        self.lies: list[str] = []
        self.reasons: list[str] = []
        self._publisher = WeightPublisher(
            Manifest.from_model_dir(self.model_dir, "bfloat16"),
            lambda: shards_of(self.weights.items(), "bfloat16"),
            *(self.log, self.transport, self.config),
        )
        self._publisher.publish_origin(self.model_dir)
        self._publisher.claim(1)

    def publish(self, number: int, fraction: float = 0.05) -> int:
        """One step, as version 1.`number`."""
        self.weights = stepped(self.weights, number, fraction)
        version = pack(1, number)
        self.made[version] = self.weights
        return self._publisher.publish(version).version

    def says(self, name: str, version: int | None, state: str) -> None:
        """A host told the log, which believes it."""
        self.said.append((name, version, state))
        self.said_last[name] = (version, state)

    def prune(self) -> int:
        return self._publisher.prune()

    def lives(self, name: str, num: int = 1) -> Lives:
        """A server that can be started `num` times."""
        fakes = [self._stack.enter_context(running_fake()) for _ in range(num)]
        return Lives(name, [Engine(self, fake) for fake in fakes])

    @asynccontextmanager
    async def hosting(self, *servers: Lives, **settings: Any) -> AsyncIterator[list[Host]]:
        """Hosts beside these servers during the block."""
        async with AsyncExitStack() as stack:
            yield [await stack.enter_async_context(self._hosting(lives, settings)) for lives in servers]
        assert self.lies == []

    @asynccontextmanager
    async def _hosting(self, lives: Lives, settings: dict[str, Any]) -> AsyncIterator[Host]:
        stage = StageDir.of_started(str(self.root / "shm"), self.root, lives.name)

        def make_receiver(incarnation: str, url: str, stage_dir: Path) -> Receiver:
            receiver = CheckedReceiver(
                *(DirectoryLog(self.root / "log", "run"), self.transport, self.config),
                server=lives.name,
                incarnation=incarnation,
                url=url,
                stage_dir=stage_dir,
                model_dir=self.model_dir,
                shared_dir=stage.shared,
            )
            receiver.world, receiver.engine, receiver.name = self, lives.engine, lives.name
            return receiver

        host = Host(
            lives,
            stage=stage,
            make_client=lambda url: ServerClient(url, vocab_size=VOCAB, control_s=30.0),
            make_receiver=make_receiver,
            pausing=Pausing(kv="recompute", num_ranks=1, deadline_s=60.0),
            settings=HostSettings(**{"max_restarts": 3, "renew_every_s": 0.1, **settings}),
            report=lambda name, facts: None,
        )
        stop = asyncio.Event()
        running = asyncio.create_task(host.run(stop))
        try:
            yield host
        finally:
            stop.set()
            await running

    async def serving(self, version: int, *names: str) -> None:
        """Wait until each of these serves `version`; meanwhile the trainer answers those that need an anchor."""

        def attempt() -> bool | None:
            if self.log.needs():
                self._publisher.answer_needs()
            acks = self.log.acks()
            serving = [name for name, ack in acks.items() if (ack.version, ack.state) == (version, "serving")]
            # Its host is through with saying so, too: what it says next is about the next version.
            return all(name in serving and self.said_last.get(name) == (version, "serving") for name in names) or None

        await waits.until(
            "test",
            attempt,
            why=lambda: f"{self.log.servers()} {self.log.acks()} {self.reasons} {self.said[-20:]}",
            deadline_s=60.0,
            recheck_s=0.02,
        )
