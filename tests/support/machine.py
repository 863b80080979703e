"""A trainer and the servers of one machine, each a process with a receiver and plain words for an engine.

What the processes read from the transport is counted in a file, and one of them can be held in the middle of a
download.
"""

import hashlib
import logging
import os
import signal
from collections import Counter
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.support.forkserver import forkserver
from tests.support.plain_engine import apply_ticket
from tests.support.weights import Model, changed_model, manifest_of, random_model, save_model
from weightsync.config import WeightsyncConfig
from weightsync.log.directory import DirectoryLog
from weightsync.manifest import Manifest
from weightsync.model_dir import ModelDir
from weightsync.receiver import Receiver
from weightsync.transport.directory import DirectoryTransport
from weightsync.versions import pack

ANSWER_S = 60.0
SHAPES = {f"model.layers.{i}.weight": ("bfloat16", (30, 10)) for i in range(4)}


class Trainer:
    """Publishes into folders of `root`. One version is four parts."""

    def __init__(self, root: Path, run: str = "run") -> None:
        import torch  # here: the servers' processes have none

        from weightsync.publisher import WeightPublisher
        from weightsync.shard import LocalShard

        self.root, self.run = root, run
        self.manifest = manifest_of(SHAPES)
        self.weights = random_model(self.manifest, seed=len(run))
        self.model_dir = save_model(root / f"model-{run}", self.manifest, self.weights)
        whole = {segment.tensor: segment for segment in self.manifest.whole()}

        def shards() -> list[LocalShard]:
            words = self.weights.items()
            return [LocalShard(name, torch.from_numpy(w.copy()), (whole[name],)) for name, w in words]

        log, transport = DirectoryLog(root / "log", run), DirectoryTransport(root / "parts", run)
        self._publisher = WeightPublisher(self.manifest, shards, log, transport, config_of(root))
        self._publisher.publish_origin(self.model_dir)
        self._publisher.claim(1)

    def publish(self, number: int) -> int:
        """Change words of every tensor and publish them as version 1.`number`."""
        self.weights = changed_model(self.weights, number, 0.1)
        return self._publisher.publish(pack(1, number)).version

    def server(self, name: str, *, stage_dir: Path | None = None, **options: Any) -> "ServerProcess":
        """Start a server beside the others of this run."""
        stages = stage_dir or self.root / "shm"
        return ServerProcess(Plan(self.root, self.run, self.model_dir, name, stages, **options))


@dataclass(frozen=True)
class Plan:
    """What a server's process needs to know. `holds_at`: which read from the transport is held until it may go on."""

    root: Path
    run: str
    model_dir: Path
    name: str
    stages: Path
    holds_at: int | None = None
    stage_deadline_s: float = 60.0
    shared: str = "shared"


class ServerProcess:
    """A server's process, from outside."""

    def __init__(self, plan: Plan) -> None:
        context = forkserver()
        self.plan = plan
        self._pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(plan, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def begin(self, command: str, *args: object) -> None:
        """Tell it to do something: stage HAVE, leave, or damage, without waiting for the answer."""
        self._pipe.send((command, *args))

    def until(self, kind: str) -> Any:
        """The next message of a kind: answer, held, waits, alone."""
        while True:
            assert self._pipe.poll(ANSWER_S), f"{self.plan.name} does not say {kind!r}"
            found, content = self._pipe.recv()
            if found == kind:
                return content
            assert found != "answer", f"{self.plan.name} answered {content!r} before {kind!r}"

    def ask(self, command: str, *args: object) -> Any:
        """Do something and wait for the answer."""
        self.begin(command, *args)
        return self.until("answer")

    def go_on(self) -> None:
        """End the hold."""
        self._pipe.send(("go on",))

    def kill(self) -> None:
        """No handler runs."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(ANSWER_S)

    @property
    def stage_dir(self) -> Path:
        return self.plan.stages / self.plan.name

    @property
    def shared_dir(self) -> Path:
        return shared_dir(self.plan)


def shared_dir(plan: Plan) -> Path:
    return plan.stages / f"{plan.run}-{plan.shared}"


def reads(root: Path) -> Counter[str]:
    """How often each part was read, by all processes."""
    path = root / "reads"
    return Counter(path.read_text().split() if path.exists() else [])


def fingerprint(model: Model) -> str:
    """Of every word."""
    return hashlib.sha256(b"".join(model[name].tobytes() for name in sorted(model))).hexdigest()


def config_of(root: Path, stage_deadline_s: float = 60.0) -> WeightsyncConfig:
    return WeightsyncConfig(
        directory=str(root / "parts"), bucket_words=300, anchor_interval=100, stage_deadline_s=stage_deadline_s
    )


class _CountingTransport(DirectoryTransport):
    def __init__(self, plan: Plan, pipe: Connection) -> None:
        super().__init__(plan.root / "parts", plan.run)
        self._plan, self._pipe, self._num_reads = plan, pipe, 0

    def get_part_into(self, key: str, target: memoryview, *, deadline_s: float) -> int:
        with (self._plan.root / "reads").open("a") as stream:  # one write of a few bytes: whole between processes
            stream.write(f"{key}\n")
        self._num_reads += 1
        if self._num_reads == self._plan.holds_at:
            self._pipe.send(("held", key))
            assert self._pipe.recv() == ("go on",)
        return super().get_part_into(key, target, deadline_s=deadline_s)


class _Telling(logging.Handler):
    """Sends what the receiver logs about waiting."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__()
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        for kind, words in (("waits", "waits for step"), ("alone", "brings its"), ("hangs", "brings its own")):
            if words in text:
                self._pipe.send((kind, text))


def _serve(plan: Plan, pipe: Connection) -> None:
    logger = logging.getLogger("weightsync")
    logger.setLevel(logging.INFO)
    logger.addHandler(_Telling(pipe))
    receiver = Receiver(
        DirectoryLog(plan.root / "log", plan.run),
        _CountingTransport(plan, pipe),
        config_of(plan.root, plan.stage_deadline_s),
        server=plan.name,
        incarnation=str(os.getpid()),
        url=f"http://{plan.name}",
        stage_dir=plan.stages / plan.name,
        model_dir=plan.model_dir,
        shared_dir=shared_dir(plan),
    )
    manifest = Manifest.from_model_dir(plan.model_dir, "bfloat16")
    words = {spec.name: ModelDir(plan.model_dir).words(spec.name).copy() for spec in manifest.tensors}
    while True:
        try:
            command, *args = pipe.recv()
        except EOFError:
            return
        try:
            if command == "stage":
                ticket = receiver.stage(*args)
                assert ticket is not None
                apply_ticket(words, plan.stages / plan.name, ticket, manifest)
                receiver.acknowledge(ticket.target, ticket.digest)
                pipe.send(("answer", (ticket.kind, ticket.target, fingerprint(words))))
            elif command == "need":
                receiver.need("the engine refused it")
                pipe.send(("answer", None))
            else:
                assert command == "leave"
                receiver.leave()
                pipe.send(("answer", None))
        except Exception as error:
            pipe.send(("answer", f"{type(error).__name__}: {error}"))
