"""A rank whose parts end with it stays until the servers have read them, and no longer."""

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from asyncrl.run.last_version import handed_over
from tests.support.tcp_parts import open_tcp
from weightsync.log import VersionLog, open_log
from weightsync.log.records import VersionRecord
from weightsync.transport.directory import DirectoryTransport
from weightsync.versions import pack


@pytest.fixture
def log(tmp_path: Path) -> VersionLog:
    found = open_log(str(tmp_path), "run")
    found.flip(None, VersionRecord(0, None, "origin", "layout", 1, model_dir="/models/start"))
    found.flip(0, VersionRecord(pack(1, 1), 0, "n", "layout", 2))
    return found


def wait(log: VersionLog, tmp_path: Path, deadline_s: float) -> None:
    asyncio.run(handed_over(log, open_tcp(tmp_path), deadline_s=deadline_s))


def test_it_returns_when_the_last_server_holds_head(log: VersionLog, tmp_path: Path) -> None:
    for name in ("a", "b"):
        log.register(name, "1", "http://x", 30.0)
    log.put_ack("a", "1", pack(1, 1), 2, "serving")
    log.put_ack("b", "1", 0, 1, "serving")
    rank = threading.Thread(target=wait, args=(log, tmp_path, 60.0))
    rank.start()
    rank.join(0.3)
    assert rank.is_alive(), "b has not read it"
    log.put_ack("b", "1", pack(1, 1), 2, "serving")
    rank.join(20.0)
    assert not rank.is_alive()


def test_nobody_is_waited_for_without_servers_or_where_parts_stay(log: VersionLog, tmp_path: Path) -> None:
    wait(log, tmp_path, 60.0)
    log.register("a", "1", "http://x", 30.0)
    asyncio.run(handed_over(log, DirectoryTransport(tmp_path, "run"), deadline_s=60.0))


def test_a_server_that_does_not_come_is_named_and_left(
    log: VersionLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log.register("late", "1", "http://x", 30.0)
    with caplog.at_level(logging.WARNING):
        wait(log, tmp_path, 0.05)
    assert "trainer waits for servers to read its last version" in caplog.text
    assert "late read it from this process's memory" in caplog.text
