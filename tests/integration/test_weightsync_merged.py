"""Servers that are behind: merged deltas that the ranks make, what servers download of them, and what stays stored."""

from pathlib import Path

import pytest
import torch

from tests.integration.test_weightsync_failures import World, on_ranks
from tests.support.plain_engine import PlainEngine
from tests.support.rank_threads import RankThreads
from weightsync import chain, merging
from weightsync.log.directory import DirectoryLog
from weightsync.log.records import VersionRecord
from weightsync.publisher import WeightPublisher
from weightsync.report import PublishReport
from weightsync.transport.base import Deadline, run_prefix
from weightsync.transport.directory import DirectoryTransport
from weightsync.versions import pack


class Behind(PlainEngine):
    """A server of the world, which stays at a version until it is told to follow."""

    def __init__(self, world: World, name: str = "s") -> None:
        log, transport = DirectoryLog(world.root / "log", "run"), DirectoryTransport(world.root / "parts", "run")
        super().__init__(log, transport, world.config, world.root / f"stage-{name}", world.model_dir, name)
        self.follow()

    def holds(self, weights: dict[str, torch.Tensor]) -> None:
        self.assert_holds({name: t.view(-1).view(torch.uint16).numpy() for name, t in weights.items()})


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, bucket_words=1 << 20, mode="changes", merged_share=1.0)


def publish(world: World, trainer: WeightPublisher, numbers: range) -> list[PublishReport]:
    """Steps between two sets of words, so that a weight that moves often moves back."""
    reports = []
    for number in numbers:
        world.step(number % 2)
        reports.append(trainer.publish(pack(1, number)))
    return reports


def merged(world: World) -> list[tuple[int, int]]:
    return [(m.base & 0xFF, m.version & 0xFF) for record in world.log.records() for m in record.merged]


def test_a_server_that_is_behind_downloads_one_merged_delta_and_holds_the_same_bits(world: World) -> None:
    trainer = world.trainer()
    publish(world, trainer, range(1, 2))
    server = Behind(world)
    assert server.have == pack(1, 1)
    reports = publish(world, trainer, range(2, 8))
    assert [bool(report.num_merged_bytes) for report in reports] == [False, False, True, False, False, True]
    assert merged(world) == [(1, 4), (1, 7)]
    way = chain.path(world.log.records(), server.have)
    assert way is not None
    assert [hop.base for hop in way.deltas] == [pack(1, 1)]
    total = sum(record.delta.num_bytes for record in world.log.records()[2:] if record.delta is not None)
    assert way.num_bytes == reports[-1].num_merged_bytes < 0.7 * total
    assert server.follow() == way.num_bytes
    server.holds(world.weights)
    trainer.prune()
    assert merged(world) == []
    named = {u.nonce for record in world.log.records() for u in record.uploads()}
    assert {prefix.split(":")[4] for prefix in world.transport.uploads(run_prefix("run"))} == named


def test_nothing_is_merged_while_every_server_follows_or_where_it_is_switched_off(tmp_path: Path) -> None:
    for share, follows in ((0.0, False), (1.0, True)):
        world = World(tmp_path / str(share), bucket_words=1 << 20, mode="changes", merged_share=share)
        trainer, server = world.trainer(), Behind(world)
        for number in range(1, 9):
            publish(world, trainer, range(number, number + 1))
            if follows:
                server.follow()
        assert merged(world) == []


def test_what_is_put_for_servers_behind_stays_a_share_of_what_versions_take(tmp_path: Path) -> None:
    world = World(tmp_path, bucket_words=1 << 20, mode="changes", merged_share=0.1, keep_deltas=0)
    trainer = world.trainer()
    servers = [Behind(world, f"s{i}") for i in range(4)]
    reports = []
    for number in range(1, 40):
        reports += publish(world, trainer, range(number, number + 1))
        if number % 5 == 0:
            servers[number // 5 % 4].follow()
        trainer.prune()
    put = [report.num_merged_bytes for report in reports]
    assert any(put)
    assert sum(put) - max(put) <= 0.1 * (world.manifest.num_bytes + sum(report.num_bytes for report in reports))


def test_ranks_merge_their_own_shards(tmp_path: Path) -> None:
    world = World(tmp_path, mode="changes", merged_share=1.0)
    group = RankThreads(3)
    trainers = on_ranks(world, group, 1)
    server = Behind(world)
    for number in range(1, 5):
        world.step(number % 2)
        reports = group.run(lambda rank, n=number: trainers[rank.rank].publish(pack(1, n)))  # type: ignore[misc]
        assert all(isinstance(report, PublishReport) for report in reports), reports
    (record,) = [record for record in world.log.records() if record.merged]
    plan = trainers[0]._plan
    assert plan is not None
    for part in record.merged[0].upload.parts:
        assert plan.buckets[part.bucket].rank == part.rank
    assert {part.rank for part in record.merged[0].upload.parts} == {0, 1, 2}
    server.follow()
    server.holds(world.weights)


def test_a_merged_delta_that_saves_nothing_is_not_committed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fold of one delta is as large as that delta."""
    monkeypatch.setattr(merging, "FEWEST_HOPS", 1)
    trainer = world.trainer()
    Behind(world)
    world.step(1)
    assert trainer.publish(pack(1, 1)).num_merged_bytes == 0
    assert merged(world) == []
    assert len(world.transport.uploads(run_prefix("run"))) == 1


def test_a_bucket_that_went_dense_is_merged_dense(world: World) -> None:
    trainer, server = world.trainer(), Behind(world)
    publish(world, trainer, range(1, 3))
    world.step(9, fraction=1.0)
    world.weights = {name: torch.randn(t.shape).to(t.dtype) for name, t in world.weights.items()}
    trainer.publish(pack(1, 3))
    assert merged(world) == [(0, 3)]
    server.follow()
    server.holds(world.weights)


def test_a_version_without_its_parts_is_not_merged_again_and_again_and_is_no_failure(world: World) -> None:
    trainer, server = world.trainer(), Behind(world)
    publish(world, trainer, range(1, 3))
    first = world.log.records()[1]
    assert first.delta is not None
    world.transport.delete(f"w:run:{first.version}:0:{first.delta.nonce}:")
    reports = publish(world, trainer, range(3, 6))
    assert [report.num_merged_bytes for report in reports] == [0, 0, 0]
    assert trainer._merger._given_up == {0}
    world.log.answered(["s"])
    with pytest.raises(Exception, match="no readable path"):
        server.follow()
    trainer.answer_needs()
    server.follow()
    server.holds(world.weights)


def test_a_merge_that_cannot_be_put_is_told_and_the_version_stands(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = world.trainer()
    Behind(world)
    publish(world, trainer, range(1, 3))
    world.step(3)
    world.transport.fails_at = 1  # the delta is one part, the merged one comes second
    report = trainer.publish(pack(1, 3))
    assert (report.num_merged_bytes, trainer.head()) == (0, pack(1, 3))
    assert "no merged delta to 1.3: no room" in caplog.text
    world.transport.fails_at = None
    assert publish(world, trainer, range(4, 5))[0].num_merged_bytes > 0
    assert merged(world) == [(0, 4)]


def test_a_snapshot_that_does_not_fit_the_parts_merges_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What memory damaged must not reach servers by way of a merged delta."""
    trainer, _ = world.trainer(), Behind(world)
    monkeypatch.setattr(merging, "FEWEST_HOPS", 9)
    publish(world, trainer, range(1, 4))
    monkeypatch.undo()
    held, head = trainer._held.snapshot, world.log.head()
    assert held is not None
    assert head is not None
    for words in held.words.values():
        words += 1
    assert trainer._merger.after(head, held, Deadline(30.0, "test")) == 0
    assert "its parts do not add up to what the snapshot holds" in caplog.text
    assert merged(world) == []
    assert len(world.transport.uploads(run_prefix("run"))) == 3


def test_a_resumed_trainer_goes_on_merging(world: World) -> None:
    trainer, server = world.trainer(), Behind(world)
    publish(world, trainer, range(1, 3))
    resumed = world.trainer(branch=2)
    world.step(5)
    assert resumed.publish(pack(2, 2)).num_merged_bytes > 0
    found: list[VersionRecord] = [record for record in world.log.records() if record.merged]
    assert [(m.base, m.version) for m in found[0].merged] == [(0, pack(2, 2))]
    server.follow()
    server.holds(world.weights)
