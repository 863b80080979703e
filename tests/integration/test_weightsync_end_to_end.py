"""Trainer to engine over a real log and a real transport: publish, stage, load, acknowledge, and every way to fail."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support.fused_model import FusedModel, bits, checkpoint, engine_of, same_bits, save_checkpoint, stepped
from tests.support.redis_server import RedisServer, running_redis
from weightsync import sglang_loader
from weightsync.config import WeightsyncConfig
from weightsync.errors import BaseMismatch, ChainBroken, DigestMismatch, Fenced, LayoutMismatch, OriginMismatch
from weightsync.log import VersionLog, open_log
from weightsync.manifest import Manifest
from weightsync.publisher import PublishReport, WeightPublisher
from weightsync.receiver import Receiver
from weightsync.shard import shards_of
from weightsync.transport import Transport, open_transport
from weightsync.versions import pack


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as started:
        yield started


class World:
    """One trainer and any number of engines around one log."""

    def __init__(self, home: str, directory: Path, config: WeightsyncConfig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self.directory, self.config, self.monkeypatch = home, directory, config, monkeypatch
        self.run = f"run-{directory}"
        self.weights = checkpoint()
        self.model_dir = save_checkpoint(self.weights, directory / "model")
        self.manifest = Manifest.from_model_dir(self.model_dir, "bfloat16")
        self.opened: list[Transport] = []
        self.log, self.transport = self.client()

    def client(self) -> tuple[VersionLog, Transport]:
        self.opened.append(open_transport(self.config, self.home, self.run))
        return open_log(self.home, self.run), self.opened[-1]

    def trainer(self, branch: int = 1) -> WeightPublisher:
        publisher = WeightPublisher(
            self.manifest, lambda: shards_of(self.weights.items(), "bfloat16"), *self.client(), self.config
        )
        publisher.publish_origin(self.model_dir)
        publisher.claim(branch)
        return publisher

    def engine(self, name: str = "s", incarnation: str = "1", model: FusedModel | None = None) -> "EngineHost":
        return EngineHost(self, name, incarnation, model or engine_of(self.model_dir))


class EngineHost:
    """An engine and the receiver beside it: what inference's host does, without a server."""

    def __init__(self, world: World, name: str, incarnation: str, model: FusedModel) -> None:
        self.world, self.model, self.name = world, model, name
        self.stage_dir = world.directory / f"stage-{name}-{incarnation}"
        self.receiver = Receiver(
            *world.client(),
            world.config,
            server=name,
            incarnation=incarnation,
            url=f"http://{name}",
            stage_dir=self.stage_dir,
            model_dir=world.model_dir,
        )

    def load(self) -> list[int]:
        """What the server does on an update request, and the status that the host reads."""
        self.world.monkeypatch.setenv(sglang_loader.STAGE_DIR, str(self.stage_dir))
        sglang_loader.load(self.model, [("@weightsync", torch.empty(0, dtype=torch.uint8))])
        status: list[int] = self.model.get_weights_by_name("@weightsync")
        return status

    def follow(self, have: int | None = 0) -> int:
        """Stage and activate until there is nothing newer; the version that was acknowledged last."""
        for _ in range(5):
            if self.receiver.stage(have) is None:
                break
            self.receiver.withdraw()
            code, branch, number, high, low, _ = self.load()
            assert code == sglang_loader.APPLIED, sglang_loader.CODES[code]
            have = pack(branch, number)
            self.receiver.acknowledge(have, high << 32 | low)
        assert have is not None
        return have

    def holds(self, weights: dict[str, Tensor]) -> bool:
        """Is every parameter what the engine's own load of these weights gives?"""
        fresh = FusedModel(self.model.rank, self.model.world)
        fresh.load_weights(weights.items())
        return same_bits(bits(self.model), bits(fresh))


@pytest.fixture(params=["redis", "directory", "tcp"])
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    server: RedisServer = request.getfixturevalue("server")
    directory = str(tmp_path / "parts") if request.param == "directory" else None
    home = server.url if request.param == "redis" else str(tmp_path / "log")
    config = WeightsyncConfig(
        transport="tcp" if request.param == "tcp" else "auto",
        directory=directory,
        bucket_words=1200,
        anchor_interval=4,
        keep_deltas=2,
    )
    made = World(home, tmp_path, config, monkeypatch)
    yield made
    for transport in made.opened:
        transport.close()


def publish(
    world: World, trainer: WeightPublisher, number: int, branch: int = 1, *, fraction: float = 0.05
) -> PublishReport:
    world.weights = stepped(world.weights, seed=number * 31 + branch, fraction=fraction)
    return trainer.publish(pack(branch, number))


def test_an_engine_follows_every_version_bit_for_bit(world: World) -> None:
    trainer, host = world.trainer(), world.engine()
    have = 0
    for number in range(1, 4):
        report = publish(world, trainer, number)
        assert (report.kind, report.version) == ("delta", pack(1, number))
        assert 0 < report.num_changed < report.num_words
        have = host.follow(have)
        assert have == pack(1, number)
        assert host.holds(world.weights)
    ack = world.log.acks()["s"]
    assert (ack.version, ack.digest, ack.state) == (have, trainer.digest_of(have), "serving")


def test_an_engine_that_is_behind_takes_all_deltas_in_one_activation(world: World) -> None:
    trainer, host = world.trainer(), world.engine()
    for number in range(1, 4):
        publish(world, trainer, number)
    ticket = host.receiver.stage(0)
    assert ticket is not None
    assert (ticket.kind, ticket.base, ticket.target) == ("delta", 0, pack(1, 3))
    assert host.load()[0] == sglang_loader.APPLIED
    assert host.holds(world.weights)


def test_a_version_that_changes_nothing_has_no_parts_and_is_followed(world: World) -> None:
    """B064: the version advances, nothing is put, the server takes it."""
    trainer, host = world.trainer(), world.engine()
    report = trainer.publish(pack(1, 0))
    assert (report.num_changed, report.num_bytes) == (0, 0)
    assert host.follow() == pack(1, 0)
    assert host.holds(world.weights)


def test_a_late_engine_starts_from_the_newest_anchor(world: World) -> None:
    trainer = world.trainer()
    for number in range(1, 8):
        publish(world, trainer, number)
    assert [r.anchor is not None for r in world.log.records()] == [False] * 4 + [True] + [False] * 3
    assert trainer.prune() > 0
    assert world.log.records()[0].version == pack(1, 4)
    late = world.engine("late")
    ticket = late.receiver.stage(0)
    assert ticket is not None
    assert (ticket.kind, ticket.target) == ("anchor", pack(1, 7))
    assert late.load()[0] == sglang_loader.APPLIED
    assert late.holds(world.weights)


def test_pruning_keeps_what_a_living_server_still_needs(world: World) -> None:
    trainer, host = world.trainer(), world.engine()
    publish(world, trainer, 1)
    host.follow()
    for number in range(2, 9):
        publish(world, trainer, number)
    trainer.prune()
    assert world.log.records()[0].version == pack(1, 1)
    ticket = host.receiver.stage(pack(1, 1))
    assert ticket is not None
    assert ticket.target == pack(1, 8)
    host.follow(pack(1, 1))
    trainer.prune()
    assert world.log.records()[0].version > pack(1, 1)
    assert host.holds(world.weights)


def test_a_resumed_trainer_goes_on_from_the_log_and_may_go_back(world: World) -> None:
    trainer, host = world.trainer(), world.engine()
    saved = {}
    for number in range(1, 4):
        publish(world, trainer, number)
        saved[number] = dict(world.weights)
    host.follow()
    world.weights = saved[1]  # the checkpoint
    resumed = world.trainer(branch=2)
    report = resumed.publish(pack(2, 1))
    assert (report.kind, report.base) == ("delta", pack(1, 3))
    assert host.follow(pack(1, 3)) == pack(2, 1)
    assert host.holds(saved[1])
    with pytest.raises(Fenced):
        publish(world, trainer, 4)
    publish(world, resumed, 2, branch=2)
    assert host.follow(pack(2, 1)) == pack(2, 2)
    assert host.holds(world.weights)


def test_a_resumed_trainer_rebuilds_from_an_anchor_when_the_start_is_gone(world: World) -> None:
    trainer = world.trainer()
    for number in range(1, 7):
        publish(world, trainer, number)
    trainer.prune()
    resumed = world.trainer(branch=2)
    world.weights = stepped(world.weights, 99)
    assert resumed.publish(pack(2, 6)).kind == "delta"


def test_a_trainer_that_starts_from_other_weights_than_the_run_began_with_is_refused(world: World) -> None:
    world.trainer()
    other = save_checkpoint(checkpoint(seed=5), world.directory / "other")
    publisher = WeightPublisher(
        world.manifest, lambda: shards_of(world.weights.items(), "bfloat16"), *world.client(), world.config
    )
    with pytest.raises(OriginMismatch, match="this run began from weights of digest"):
        publisher.publish_origin(other)


def test_a_server_whose_directory_holds_other_weights_asks_for_an_anchor_and_gets_it(world: World) -> None:
    trainer = world.trainer()
    trained_from = world.model_dir
    world.model_dir = save_checkpoint(checkpoint(seed=5), world.directory / "other")
    host = world.engine()
    with pytest.raises(DigestMismatch):
        host.receiver.acknowledge(0, host.receiver.origin_digest())
    assert world.log.servers()["s"].state == "failed"
    with pytest.raises(ChainBroken, match="asked for an anchor"):
        host.receiver.stage(None)
    assert trainer.answer_needs()
    assert not trainer.answer_needs()
    assert world.log.needs() == []
    ticket = host.receiver.stage(None)
    assert ticket is not None
    assert (ticket.kind, ticket.target) == ("anchor", 0)
    assert host.load()[0] == sglang_loader.APPLIED
    assert host.holds(checkpoint())
    assert trained_from != world.model_dir


def test_a_server_with_another_model_is_refused_by_the_first_tensor_that_differs(world: World) -> None:
    world.trainer()
    weights = checkpoint()
    weights["model.norm.weight"] = weights["model.norm.weight"][:8].clone()
    world.model_dir = save_checkpoint(weights, world.directory / "other")
    with pytest.raises(
        LayoutMismatch, match=r"model.norm.weight: server s .* has bfloat16 \[8\], the trainer has bfloat16 \[16\]"
    ):
        world.engine(model=FusedModel()).receiver.stage(None)


def test_lost_parts_lead_to_a_need_and_the_trainer_answers_with_an_anchor(world: World) -> None:
    trainer, host = world.trainer(), world.engine()
    publish(world, trainer, 1)
    have = host.follow()
    publish(world, trainer, 2)
    head = world.log.head()
    assert head is not None
    assert head.delta is not None
    world.transport.delete(f"w:{world.transport.uploads('w:')[0].split(':')[1]}:{head.version}:")
    with pytest.raises(ChainBroken, match="no readable path"):
        host.receiver.stage(have)
    (need,) = world.log.needs()
    assert need.server == "s"
    assert trainer.answer_needs()
    assert host.receiver.wait(5.0)
    assert host.follow(have) == pack(1, 2)
    assert host.holds(world.weights)


def test_a_lost_anchor_is_made_again_under_another_name(world: World) -> None:
    trainer = world.trainer()
    for number in range(1, 5):
        publish(world, trainer, number)
    trainer.prune()
    head = world.log.head()
    assert head is not None
    assert head.anchor is not None
    for prefix in world.transport.uploads("w:"):
        world.transport.delete(prefix)
    late = world.engine("late")
    with pytest.raises(ChainBroken):
        late.receiver.stage(None)
    assert trainer.answer_needs()
    again = world.log.head()
    assert again is not None
    assert again.anchor is not None
    assert again.anchor.nonce != head.anchor.nonce
    assert late.follow(None) == pack(1, 4)
    assert late.holds(world.weights)


def test_a_digest_that_is_not_the_published_one_is_never_acknowledged(world: World) -> None:
    trainer, host = world.trainer(), world.engine()
    publish(world, trainer, 1)
    host.receiver.stage(0)
    code, _, _, high, low, _ = host.load()
    assert code == sglang_loader.APPLIED
    with pytest.raises(DigestMismatch):
        host.receiver.acknowledge(pack(1, 1), (high << 32 | low) ^ 1)
    assert world.log.acks() == {}
    assert world.log.servers()["s"].state == "failed"
    assert [need.server for need in world.log.needs()] == ["s"]


def test_a_restarted_engine_begins_again_at_its_directory(world: World) -> None:
    trainer, host = world.trainer(), world.engine()
    publish(world, trainer, 1)
    host.follow()
    again = world.engine(incarnation="2")
    assert world.log.acks() == {}
    publish(world, trainer, 2)
    assert again.follow(0) == pack(1, 2)
    assert again.holds(world.weights)


def test_a_new_host_asks_the_engine_and_a_second_load_of_the_same_ticket_changes_nothing(world: World) -> None:
    trainer, host = world.trainer(), world.engine()
    publish(world, trainer, 1)
    host.follow()
    before = bits(host.model)
    assert host.load()[:3] == [sglang_loader.ALREADY, 1, 1]
    assert same_bits(before, bits(host.model))
    successor = world.engine(incarnation="2", model=host.model)
    assert successor.receiver.stage_inspect().kind == "inspect"
    code, branch, number, high, low, changed = successor.load()
    assert (code, pack(branch, number), changed) == (sglang_loader.APPLIED, pack(1, 1), 0)
    successor.receiver.acknowledge(pack(1, 1), high << 32 | low)


def test_a_publish_of_a_version_that_is_head_is_done_already(world: World) -> None:
    trainer = world.trainer()
    first = publish(world, trainer, 1)
    again = trainer.publish(pack(1, 1))
    assert again.repeated
    assert (again.digest, again.num_bytes, again.num_changed) == (first.digest, first.num_bytes, first.num_changed)
    assert len(world.log.records()) == 2


def test_two_flips_on_one_base_cannot_both_win(world: World) -> None:
    trainer = world.trainer()
    publish(world, trainer, 1)
    head = world.log.head()
    assert head is not None
    with pytest.raises(BaseMismatch):
        world.log.flip(0, head.__class__(pack(1, 2), 0, "other", head.layout, 1))
