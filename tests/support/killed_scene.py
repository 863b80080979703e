"""The run in which a trainer dies while it publishes 1.3, and what must hold afterwards."""

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from tests.support.plain_engine import PlainEngine
from tests.support.weights import Model, changed_model, manifest_of, random_model, save_model
from weightsync import merging
from weightsync.audit import audit
from weightsync.config import WeightsyncConfig
from weightsync.log import VersionLog, open_log
from weightsync.log.redis_client import connect
from weightsync.publisher import WeightPublisher
from weightsync.shard import LocalShard
from weightsync.transport import Transport, open_transport
from weightsync.transport.base import run_prefix
from weightsync.versions import pack

SHAPES = {"a": ("bfloat16", (200, 8)), "b": ("bfloat16", (8,)), "c": ("int32", (9,))}
RUN = "killed"
DYING, CHECKPOINT = 3, 2


class Scene:
    """One run, with log and parts in Redis or in folders."""

    def __init__(self, root: Path, redis: str | None) -> None:
        self.root, self.redis = root, redis
        self.state = root / "state"
        self.manifest = manifest_of(SHAPES)
        self.models: list[Model] = [random_model(self.manifest)]
        for number in range(1, 5):
            self.models.append(changed_model(self.models[-1], number, 0.1))
        self.model_dir = save_model(root / "model", self.manifest, self.models[0])
        directory = None if redis else str(self.state / "parts")
        self.config = WeightsyncConfig(
            directory=directory,
            mode="changes",
            bucket_words=900,
            anchor_interval=DYING,
            keep_deltas=0,
            merged_share=1.0,
        )
        self.number = 0
        self.trainer: WeightPublisher

    def open(self) -> tuple[VersionLog, Transport]:
        """Clients of their own."""
        home = self.redis or str(self.state / "log")
        return open_log(home, RUN), open_transport(self.config, home, RUN)

    def begin(self) -> None:
        """Versions 1.1 and 1.2, a server that stays at 0.0, and one that stays at 1.2."""
        self.trainer = self.claimed(1)
        log, transport = self.open()
        config = self.config.model_copy(update={"ack_lease_s": 1e6})
        for name in ("far", "near"):
            engine = PlainEngine(log, transport, config, self.root / name, self.model_dir, name)
            for self.number in (1, 2) if name == "far" else ():
                self.trainer.publish(pack(1, self.number))
            if name == "near":
                engine.follow()

    def claimed(self, branch: int) -> WeightPublisher:
        """A trainer that owns the log."""
        log, transport = self.open()
        trainer = WeightPublisher(self.manifest, self.shards, log, transport, self.config)
        trainer.publish_origin(self.model_dir)
        trainer.claim(branch)
        return trainer

    def shards(self) -> list[LocalShard]:
        model = self.models[self.number]
        whole = {segment.tensor: segment for segment in self.manifest.whole()}
        return [LocalShard(name, torch.from_numpy(words.copy()), (whole[name],)) for name, words in model.items()]

    def publish(self) -> None:
        """What the trainer dies in: a version with an anchor and a merged delta beside it, and a sweep."""
        self.number = DYING
        report = self.trainer.publish(pack(1, DYING))
        assert report.has_anchor, "the scene should bring an anchor"
        assert report.num_merged_bytes > 0, "the scene should bring a merged delta"
        self.trainer.prune()

    def resume_and_check(self) -> str:
        """Go on from the checkpoint of 1.2 on branch 2, as the next trainer does."""
        log, transport = self.open()
        head = log.head()
        assert head is not None
        assert head.version in (pack(1, CHECKPOINT), pack(1, DYING)), "head is a version that was published"
        self._check_all(log, transport)
        engines = [self._joiner(log, transport, name) for name in ("new", "other")]
        self._follow(engines[:1], head.version & 0xFF)
        self.trainer = self.claimed(2)
        for self.number in (CHECKPOINT, 4):
            report = self.trainer.publish(pack(2, self.number))
            assert report.kind == "delta", "the snapshot was rebuilt from the log"
            snapshot, record = self.trainer._held.snapshot, log.head()
            assert snapshot is not None
            assert record is not None
            assert (snapshot.version, snapshot.measure()) == (record.version, record.digest)
            self._follow(engines[:1], self.number)
        self._follow(engines[1:], 4)
        self.trainer.prune()
        self._check_all(log, transport)
        named = {upload.nonce for record in log.records() for upload in record.uploads() if upload.parts}
        assert {prefix.split(":")[4] for prefix in transport.uploads(run_prefix(RUN))} == named, "something is left"
        assert self.trainer.prune() == 0
        return "all is well"

    def _joiner(self, log: VersionLog, transport: Transport, name: str) -> PlainEngine:
        stage_dir = self.root / f"joiner-{name}"
        shutil.rmtree(stage_dir, ignore_errors=True)
        return PlainEngine(log, transport, self.config, stage_dir, self.model_dir, name)

    def _follow(self, engines: list[PlainEngine], number: int) -> None:
        for engine in engines:
            engine.follow()
            engine.assert_holds(self.models[number])

    def _check_all(self, log: VersionLog, transport: Transport) -> None:
        found = audit(log, transport, self.config)
        assert found["ok"], found
        records = log.records()
        assert all(after.base == before.version for before, after in pairwise(records)), "records are no line"

    def save(self) -> Any:  # of either kind
        """Everything that log and transport hold."""
        if self.redis is None:
            return shutil.copytree(self.state, self.root / "kept")
        client: Any = connect(self.redis)
        return {key: client.dump(key) for key in self._keys(client)}

    def restore(self, saved: Any) -> None:
        """Log and transport as they were."""
        if self.redis is None:
            shutil.rmtree(self.state)
            shutil.copytree(saved, self.state)
            return
        client: Any = connect(self.redis)
        client.delete(*self._keys(client))
        for key, value in saved.items():
            client.restore(key, 0, value)

    def _keys(self, client: Any) -> list[bytes]:
        return [*client.scan_iter(f"{{{RUN}}}:*"), *client.scan_iter(f"{run_prefix(RUN)}*")]


assert merging.FEWEST_HOPS == DYING, "the server at 0.0 is so many deltas behind when 1.3 is published"
