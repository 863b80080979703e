"""Publishers whose parts stay in their memory, and an engine: processes that die, ranks that each serve their own."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.fused_model import FusedModel, bits, checkpoint, engine_of, same_bits, save_checkpoint
from tests.support.rank_threads import RankThread, RankThreads
from tests.support.tcp_parts import open_tcp, tcp_config
from tests.support.tcp_trainer import weights_at
from weightsync import sglang_loader
from weightsync.errors import TransportLost
from weightsync.log import open_log
from weightsync.manifest import Manifest
from weightsync.publisher import WeightPublisher
from weightsync.receiver import Receiver
from weightsync.shard import LocalShard, shards_of
from weightsync.versions import pack


class TrainerProcess:
    """tests.support.tcp_trainer, and what it says."""

    def __init__(self, home: Path, model_dir: Path, branch: int, step: int) -> None:
        command = [sys.executable, "-m", "tests.support.tcp_trainer", str(home), str(model_dir), str(branch), str(step)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def publish(self) -> str:
        """Train a step and publish it; delta or anchor."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.communicate()


class Engine:
    """An engine, and its receiver in a process that is not the trainer's."""

    def __init__(self, home: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.model, self.have = engine_of(model_dir), 0
        monkeypatch.setenv(sglang_loader.STAGE_DIR, str(home / "stage"))
        self.transport = open_tcp(home)
        self.receiver = Receiver(
            *(open_log(str(home), "run"), self.transport, tcp_config(bucket_words=1200)),
            **{"server": "s", "incarnation": "1", "url": "http://s"},
            stage_dir=home / "stage",
            model_dir=model_dir,
        )

    def follow(self) -> str:
        """Stage and load what is newest; the kind of the ticket."""
        ticket = self.receiver.stage(self.have)
        assert ticket is not None
        sglang_loader.load(self.model, [("@weightsync", torch.empty(0, dtype=torch.uint8))])
        code, branch, number, high, low, _ = self.model.get_weights_by_name("@weightsync")
        assert code == sglang_loader.APPLIED, sglang_loader.CODES[code]
        self.have = pack(branch, number)
        self.receiver.acknowledge(self.have, high << 32 | low)
        return ticket.kind

    def holds(self, step: int) -> bool:
        fresh = FusedModel()
        fresh.load_weights(weights_at(step).items())
        return same_bits(bits(self.model), bits(fresh))


def test_versions_cross_between_processes_and_a_killed_trainer_costs_one_anchor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_dir = save_checkpoint(checkpoint(), tmp_path / "model")
    trainer = TrainerProcess(tmp_path, model_dir, 1, 0)
    assert trainer.publish() == "delta"
    engine = Engine(tmp_path, model_dir, monkeypatch)
    assert engine.follow() == "delta"
    for step in (2, 3):
        assert trainer.publish() == "delta", step
    assert engine.follow() == "delta"
    assert (engine.have, engine.holds(3)) == (pack(1, 3), True)
    # The trainer dies with a version that nobody has read.
    assert trainer.publish() == "delta"
    trainer.kill()
    with pytest.raises(TransportLost, match="its rank died"):
        engine.receiver.stage(engine.have)
    assert engine.holds(3), "what it has stays right"
    trainer = TrainerProcess(tmp_path, model_dir, 2, 2)
    assert trainer.publish() == "anchor", "nothing of the dead trainer's can be read, so the model goes whole"
    assert engine.follow() == "anchor"
    assert trainer.publish() == "delta"
    assert engine.follow() == "delta"
    assert (engine.have, engine.holds(4)) == (pack(2, 4), True)
    trainer.kill()
    engine.transport.close()


def test_every_rank_serves_what_it_made_and_one_sweeps_the_memory_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_dir = save_checkpoint(checkpoint(), tmp_path / "model")
    manifest = Manifest.from_model_dir(model_dir, "bfloat16")
    config, group, step = tcp_config(bucket_words=1200, anchor_interval=2, keep_deltas=0), RankThreads(2), 0
    transports = [open_tcp(tmp_path, config) for _ in group.ranks]

    def begin(rank: RankThread) -> WeightPublisher:
        def own() -> list[LocalShard]:
            return shards_of(list(weights_at(step).items())[rank.rank :: rank.world], "bfloat16")

        log = open_log(str(tmp_path), "run")
        publisher = WeightPublisher(manifest, own, log, transports[rank.rank], config, rank)
        publisher.publish_origin(model_dir)
        publisher.claim(1)
        return publisher

    publishers = group.run(begin)
    assert all(isinstance(publisher, WeightPublisher) for publisher in publishers), publishers
    engine = Engine(tmp_path, model_dir, monkeypatch)
    for step in (1, 2, 3):
        reports = group.run(lambda rank, n=step: publishers[rank.rank].publish(pack(1, n)))
        assert not any(isinstance(report, BaseException) for report in reports), reports
        assert engine.follow() == "delta"
    assert engine.holds(3)
    held = [transport._memory.num_bytes for transport in transports]
    assert all(held), "both keep parts"
    assert publishers[0].prune() > 0
    left = [transport._memory.num_bytes for transport in transports]
    assert all(0 < after < before for after, before in zip(left, held, strict=True))
    assert transports[0].uploads("w:") == transports[1].uploads("w:") == engine.transport.uploads("w:")
    for transport in (*transports, engine.transport):
        transport.close()
