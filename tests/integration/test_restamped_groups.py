"""Groups of another run, imported with --restamp, are trained on by a trainer that never saw their weights."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncrl.data.group_columns import GroupRecord
from asyncrl.data.group_files import GroupFile, GroupFileWriter
from asyncrl.run.import_groups import Import, ImportSettings
from buffer import ReplayBuffer, pack
from tests.support.redis_server import RedisServer, running_redis
from tests.support.tiny_policy import make_groups, write_tiny_model
from tests.support.trainer_run import GROUP_SIZE, make_config, start_trainer
from weightsync import open_log


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


def test_a_trainer_trains_on_restamped_groups_of_another_run(server: RedisServer, tmp_path: Path) -> None:
    model_dir = write_tiny_model(tmp_path / "model")
    with GroupFileWriter(tmp_path / "groups.parquet", {"run": "other"}) as writer:
        for group in make_groups(model_dir, 8, GROUP_SIZE, version=pack(3, 9), digest=0x77):
            writer.add(GroupRecord(group))
    config = make_config(tmp_path, model_dir, trainer={"steps": 2})
    buffers = [ReplayBuffer.connect(server.url, "toy", config.buffer, config.staleness) for _ in range(2)]
    run = start_trainer(config, buffers[0], url=server.url)
    log = open_log(server.url, "toy")
    importing = Import(
        buffers[1],
        log,
        GroupFile(tmp_path / "groups.parquet"),
        ImportSettings(wait_s=60.0, renew_every_s=config.buffer.renew_every_s, restamp=True),
        print,
    )
    thread = threading.Thread(target=lambda: asyncio.run(importing.run()))
    thread.start()
    outcome = run.go()
    thread.join(60)
    assert not thread.is_alive()
    assert importing.report.outcomes == {"ready": 8}
    assert outcome.step == 2
    audit = buffers[1].audit(payloads=True)
    assert audit.ok, audit.problems
    assert audit.identity["consumed"] == 8
    assert "unknown_weights" not in audit.by_reason
    for one in (*buffers, log):
        one.close()
