"""One trainer rank, a log, a transport, a receiver and the local engine's model in this process: whole versions.

Versions go from the old words to the new ones and back, so that each has the same number of changes.
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file
from torch import Tensor

from asyncrl.inference.local_engine.model_config import ModelConfig
from asyncrl.inference.local_engine.models import LocalModel
from scripts.benches.weightsync_cases.pairs import Pair
from scripts.benches.weightsync_cases.training import Shape
from weightsync import diff, sglang_loader
from weightsync.config import WeightsyncConfig
from weightsync.layout import Words
from weightsync.log import open_log
from weightsync.preparation import GOING_ON, PREPARE
from weightsync.publisher import PublishReport, WeightPublisher
from weightsync.receiver import Receiver
from weightsync.transport import open_transport
from weightsync.versions import pack

RUN = "bench"


@dataclass
class Lap:
    """Wall seconds of a version's steps, and CPU seconds of the loader in the pause, of all its threads."""

    publish: float = 0.0
    stage: float = 0.0
    load: float = 0.0
    load_cpu: float = 0.0
    report: PublishReport | None = None


@dataclass
class Sync:
    """Made by `running_sync`; `turn` takes one version all the way."""

    directory: Path
    pair: Pair
    model: LocalModel
    publisher: WeightPublisher
    receiver: Receiver
    current: list[Words] = field(default_factory=list)
    number: int = 0

    def publish(self) -> PublishReport:
        """The next version: the words that are not published now."""
        self.number += 1
        self.current[0] = self.pair.new if self.number % 2 else self.pair.old
        return self.publisher.publish(pack(1, self.number))

    def turn(self, *, prepared: bool = False, has_numba: bool = True) -> Lap:
        """Publish, stage, prepare if so, load, acknowledge. Raises AssertionError unless the loader applied it.

        Args:
            has_numba: the engine's environment has it; the trainer's always does.
        """
        lap, start = Lap(), time.perf_counter()
        lap.report = self.publish()
        lap.publish = time.perf_counter() - start
        start = time.perf_counter()
        staged = self.receiver.stage(0 if self.number == 1 else pack(1, self.number - 1))
        assert staged is not None, "nothing was staged"
        lap.stage = time.perf_counter() - start
        with nullcontext() if has_numba else without_numba():
            while prepared and self.model.get_weights_by_name(PREPARE) == [GOING_ON]:
                time.sleep(0.005)
            start, cpu = time.perf_counter(), time.process_time()
            sglang_loader.load(self.model, [])
            lap.load, lap.load_cpu = time.perf_counter() - start, time.process_time() - cpu
        code, branch, number, high, low, _ = self.model.get_weights_by_name(sglang_loader.STATUS)
        assert code == sglang_loader.APPLIED, sglang_loader.CODES[code]
        self.receiver.acknowledge(pack(branch, number), high << 32 | low)
        return lap

    def holds_what_was_published(self) -> bool:
        """Does the engine hold every word?"""
        expected = self.pair.tensors(self.current[0])
        views = self.model.weights.views
        return all(torch.equal(views[name].view(torch.int16), expected[name].view(torch.int16)) for name in expected)


@contextmanager
def running_sync(shape: Shape, pair: Pair) -> Iterator[Sync]:
    """Everything set up at version 0.0, in a folder in memory that is gone afterwards."""
    with TemporaryDirectory(prefix="asyncrl-bench-", dir=memory_folder()) as scratch:
        directory = Path(scratch)
        config = WeightsyncConfig(directory=str(directory / "parts"), anchor_interval=1 << 20, keep_deltas=1)
        model_dir = save(shape, pair.tensors(pair.old), directory / "model")
        log, transport = open_log(str(directory / "log"), RUN), open_transport(config, str(directory / "log"), RUN)
        current = [pair.old]
        publisher = WeightPublisher(pair.manifest, lambda: pair.shards(current[0]), log, transport, config)
        publisher.publish_origin(model_dir)
        publisher.claim(1)
        receiver = Receiver(
            *(open_log(str(directory / "log"), RUN), open_transport(config, str(directory / "log"), RUN), config),
            server="server",
            incarnation="1",
            url="http://server",
            stage_dir=directory / "stage",
            model_dir=model_dir,
        )
        model = LocalModel(ModelConfig.from_dir(model_dir), torch.bfloat16)
        model.load_weights(pair.tensors(pair.old).items())
        before = os.environ.get(sglang_loader.STAGE_DIR)
        os.environ[sglang_loader.STAGE_DIR] = str(directory / "stage")
        try:
            yield Sync(directory, pair, model, publisher, receiver, current)
        finally:
            os.environ.pop(sglang_loader.STAGE_DIR)
            if before is not None:
                os.environ[sglang_loader.STAGE_DIR] = before


@contextmanager
def without_numba() -> Iterator[None]:
    """As where it is not installed."""
    before, diff.HAVE_NUMBA = diff.HAVE_NUMBA, False
    try:
        yield
    finally:
        diff.HAVE_NUMBA = before


def save(shape: Shape, tensors: Mapping[str, Tensor], directory: Path) -> Path:
    """A model directory."""
    directory.mkdir()
    shape.config().save_pretrained(directory)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")
    return directory


def memory_folder() -> str | None:
    """Where files are memory; the usual temporary folder where there is none."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
