"""Ranks as processes over gloo: an engine's agree on one digest; a trainer's publish however they share a model."""

import json
from pathlib import Path

from tests.support.forkserver import run_modules
from tests.support.fused_model import checkpoint, save_checkpoint, stepped
from tests.support.two_ranks import run_ranks
from weightsync.config import WeightsyncConfig
from weightsync.log import open_log
from weightsync.manifest import Manifest
from weightsync.publisher import WeightPublisher
from weightsync.receiver import Receiver
from weightsync.shard import shards_of
from weightsync.transport import open_transport
from weightsync.versions import pack

WORLD = 2


def test_ranks_in_processes_apply_one_ticket_together(tmp_path: Path) -> None:
    model_dir = save_checkpoint(checkpoint(), tmp_path / "model")
    weights = stepped(checkpoint(), 1)
    config = WeightsyncConfig(directory=str(tmp_path / "parts"))
    log, transport = open_log(str(tmp_path), "run"), open_transport(config, "", "run")
    manifest = Manifest.from_model_dir(model_dir, "bfloat16")
    trainer = WeightPublisher(manifest, lambda: shards_of(weights.items(), "bfloat16"), log, transport, config)
    trainer.publish_origin(model_dir)
    trainer.claim(1)
    report = trainer.publish(pack(1, 1))
    stage_dir = tmp_path / "stage"
    receiver = Receiver(
        *(log, transport, config),
        **{"server": "s", "incarnation": "1", "url": "http://s", "stage_dir": stage_dir, "model_dir": model_dir},
    )
    assert receiver.stage(0) is not None
    new = save_checkpoint(weights, tmp_path / "new")
    own = [{"RANK": str(rank), "WORLD_SIZE": str(WORLD), "ASYNCRL_STAGE_DIR": str(stage_dir)} for rank in range(WORLD)]
    arguments = (str(tmp_path / "store"), str(model_dir), str(new))
    for rank in run_modules("tests.support.engine_rank", arguments, own, tmp_path, 120.0):
        assert rank.code == 0, rank.err
        found = json.loads(rank.out.splitlines()[-1])
        assert found["status"] == [0, 1, 1, report.digest >> 32, report.digest & 0xFFFFFFFF, report.num_changed]
        assert found["equal"]
        assert found["worst"] == WORLD - 1
        assert found["sums"] == [(1 << 64) - 2, 1]
        assert found["tables"] == [[0], [10, 11]]


def test_four_trainer_ranks_publish_the_whole_model_however_they_share_it(tmp_path: Path) -> None:
    """FSDP with uneven and empty shards, with replicas, inside tensor parallel; rows and columns; every dtype."""
    answers = run_ranks("tests.support.layout_rank", 4, str(tmp_path))
    arrangements = ["fsdp", "hybrid", "fsdp in tensor parallel", "tensor parallel", "replicated", "every dtype"]
    assert answers == [dict.fromkeys(arrangements, True)] * 4
