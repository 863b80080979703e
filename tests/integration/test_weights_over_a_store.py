"""A run whose parts lie in an object store: publish, follow, lose parts, prune, and a store that fails in between."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.faulty_store import PROTOCOL, FaultyStore
from tests.support.plain_engine import PlainEngine
from tests.support.weights import Model, changed_model, manifest_of, random_model, save_model
from weightsync.audit import audit
from weightsync.config import WeightsyncConfig
from weightsync.errors import PublishFailed, TransportLost
from weightsync.log.directory import DirectoryLog
from weightsync.publisher import WeightPublisher
from weightsync.shard import LocalShard
from weightsync.transport import open_transport
from weightsync.transport.base import upload_version
from weightsync.versions import pack


class Run:
    """A trainer and servers around one store."""

    def __init__(self, root: Path, url: str) -> None:
        self.root = root
        self.manifest = manifest_of()
        self.model: Model = random_model(self.manifest)
        self.model_dir = save_model(root / "model", self.manifest, self.model)
        self.config = WeightsyncConfig(directory=url, bucket_words=100, anchor_interval=3, keep_deltas=1)
        self.log, self.transport = DirectoryLog(root / "log", "run"), open_transport(self.config, "unused", "run")
        whole = {segment.tensor: segment for segment in self.manifest.whole()}
        self.trainer = WeightPublisher(
            self.manifest,
            lambda: [LocalShard(n, torch.from_numpy(self.model[n].copy()), (run,)) for n, run in whole.items()],
            *(self.log, self.transport, self.config),
        )
        self.trainer.publish_origin(self.model_dir)
        self.trainer.claim(1)

    def publish(self, number: int) -> None:
        self.model = changed_model(self.model, number)
        self.trainer.publish(pack(1, number))

    def server(self, name: str) -> PlainEngine:
        transport = open_transport(self.config, "unused", "run")
        return PlainEngine(self.log, transport, self.config, self.root / name, self.model_dir, name)


@pytest.fixture(params=["memory", PROTOCOL])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setattr(FaultyStore, "before", None)
    made = Run(tmp_path, f"{request.param}://{tmp_path}")
    yield made
    monkeypatch.setattr(FaultyStore, "before", None)
    made.transport.delete("w:")


def test_servers_follow_through_anchors_lost_parts_and_pruning(run: Run) -> None:
    first = run.server("first")
    for number in range(1, 6):
        run.publish(number)
        first.follow()
        first.assert_holds(run.model)
    assert any(record.anchor is not None for record in run.log.records())
    num_uploads = len(run.transport.uploads("w:"))
    assert run.trainer.prune() > 0
    assert len(run.transport.uploads("w:")) < num_uploads
    late = run.server("late")
    late.follow()
    late.assert_holds(run.model)
    assert audit(run.log, run.transport, run.config)["ok"]
    run.publish(6)
    head = run.log.head()
    assert head is not None
    run.transport.delete(f"w:run:{head.version}:")
    with pytest.raises(Exception, match="asked for an anchor"):
        first.follow()
    assert run.trainer.answer_needs()
    first.follow()
    first.assert_holds(run.model)


@pytest.mark.parametrize("run", [PROTOCOL], indirect=True)
def test_a_store_that_fails_costs_a_version_or_a_wait_and_no_bit(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    server = run.server("s")
    run.publish(1)
    server.follow()
    failing = {"write"}

    def fails(operation: str, path: str) -> None:
        if operation in failing:
            raise ConnectionResetError("no route")

    monkeypatch.setattr(FaultyStore, "before", fails)
    with pytest.raises(PublishFailed, match=r"no route.*the next publish covers"):
        run.publish(2)
    failing.clear()
    run.publish(3)
    failing.add("read")
    with pytest.raises(TransportLost, match="no route"):
        server.follow()
    assert server.have == pack(1, 1)
    assert run.log.needs() == [], "a store that does not answer is no reason for an anchor"
    failing.clear()
    server.follow()
    server.assert_holds(run.model)
    # Nothing of the failed version stayed.
    assert {upload_version(upload) for upload in run.transport.uploads("w:")} == {pack(1, 1), pack(1, 3)}
