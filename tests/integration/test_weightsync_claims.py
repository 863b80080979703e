"""Two trainers of one branch, and servers whose version the log lost: nobody takes one set of bits for another."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.fused_model import checkpoint, save_checkpoint, stepped
from tests.support.plain_engine import PlainEngine
from tests.support.redis_server import RedisServer, running_redis
from tests.support.version_logs import LogHome
from weightsync.config import WeightsyncConfig
from weightsync.errors import DigestMismatch, Fenced, PublishFailed
from weightsync.manifest import Manifest
from weightsync.publisher import WeightPublisher
from weightsync.shard import shards_of
from weightsync.transport import Transport, open_transport
from weightsync.versions import pack


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as started:
        yield started


class Trainer:
    """One start of a trainer, with weights of its own."""

    def __init__(self, world: "World", branch: int) -> None:
        self.weights = world.weights
        manifest = Manifest.from_model_dir(world.model_dir, "bfloat16")
        log = world.home.open()
        self.publisher = WeightPublisher(
            manifest, lambda: shards_of(self.weights.items(), manifest.dtypes), log, world.transport(), world.config
        )
        self.publisher.publish_origin(world.model_dir)
        self.publisher.claim(branch)

    def step(self, seed: int) -> None:
        self.weights = stepped(self.weights, seed)


class World:
    """A log of either kind, parts in a folder, a model directory."""

    def __init__(self, root: Path, server: RedisServer | None) -> None:
        self.root, self.home = root, LogHome(root / "home", server)
        self.config = WeightsyncConfig(directory=str(root / "parts"), bucket_words=500)
        self.weights = checkpoint()
        self.model_dir = save_checkpoint(self.weights, root / "model")

    def transport(self) -> Transport:
        return open_transport(self.config, "unused", self.home.run)

    def engine(self, name: str) -> PlainEngine:
        stage_dir = self.root / f"stage-{name}"
        return PlainEngine(self.home.open(), self.transport(), self.config, stage_dir, self.model_dir, name)

    def assert_served(self, engine: PlainEngine, trainer: Trainer) -> None:
        engine.follow()
        engine.assert_holds({name: t.view(-1).view(torch.uint16).numpy() for name, t in trainer.weights.items()})


@pytest.fixture(params=["directory", "redis"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    (tmp_path / "home").mkdir()
    found = World(tmp_path, None if request.param == "directory" else request.getfixturevalue("server"))
    yield found
    found.home.close()


def test_a_paused_trainer_whose_branch_was_given_out_again_is_fenced(world: World) -> None:
    """Its version has a name that the restarted one gave to other bits: that is no repeat of its own publish."""
    paused = Trainer(world, 1)
    paused.step(1)
    restarted = Trainer(world, 1)
    restarted.step(2)
    restarted.publisher.publish(pack(1, 1))
    for version in (pack(1, 1), pack(1, 2)):
        with pytest.raises(Fenced, match="branch 1 owns the log"):
            paused.publisher.publish(version)
    with pytest.raises(Fenced):
        paused.publisher.prune()
    world.assert_served(world.engine("s"), restarted)


def test_a_restart_that_was_given_its_branch_again_does_not_take_other_bits_for_its_own(world: World) -> None:
    before = Trainer(world, 1)
    before.step(1)
    before.publisher.publish(pack(1, 1))
    engine = world.engine("s")
    world.assert_served(engine, before)
    again = Trainer(world, 1)
    again.step(2)
    with pytest.raises(PublishFailed, match=r"1\.1 is head already: another start of this branch published other"):
        again.publisher.publish(pack(1, 1))
    again.weights = before.weights
    assert again.publisher.publish(pack(1, 1)).repeated
    again.step(3)
    assert again.publisher.publish(pack(1, 2)).base == pack(1, 1)
    assert again.publisher.publish(pack(1, 2)).repeated
    world.assert_served(engine, again)


def test_a_server_whose_version_the_log_lost_says_so_and_loads_an_anchor(world: World) -> None:
    trainer = Trainer(world, 1)
    trainer.step(1)
    trainer.publisher.publish(pack(1, 1))
    kept = world.home.save()
    trainer.step(2)
    report = trainer.publisher.publish(pack(1, 2))
    engine = world.engine("s")
    world.assert_served(engine, trainer)
    world.home.rewind(kept)
    with pytest.raises(DigestMismatch, match=r"server s has version 1\.2, which the log does not have: it lost its"):
        engine.receiver.acknowledge(pack(1, 2), report.digest)
    log = world.home.open()
    assert log.acks()["s"].state == "failed"
    assert [need.server for need in log.needs()] == ["s"]
    trainer.step(3)
    trainer.publisher.publish(pack(1, 3))
    trainer.publisher.answer_needs()
    engine.have = pack(1, 2)
    world.assert_served(engine, trainer)


def test_a_lost_claim_fences_nobody_who_should_go_on_and_lets_nobody_back_who_should_not(world: World) -> None:
    old = Trainer(world, 1)
    old.step(1)
    old.publisher.publish(pack(1, 1))
    kept = world.home.save()
    new = Trainer(world, 2)
    world.home.rewind(kept)
    new.step(2)
    new.publisher.publish(pack(2, 1))
    old.step(3)
    with pytest.raises(Fenced, match="branch 2 owns the log"):
        old.publisher.publish(pack(1, 2))
    world.assert_served(world.engine("s"), new)
