"""Trainer and lent servers take turns, over a version log in a folder."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncrl import waits
from asyncrl.errors import WaitTimeout
from asyncrl.inference.sharing import WAIT, SharedGpus
from tests.support.event_loop import in_event_loop
from weightsync.log import VersionLog, open_log

LENT = ("lent-0", "lent-1")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[VersionLog]:
    log = open_log(str(tmp_path), "run")
    log.register("server-0", "first", "http://127.0.0.1:1", 60.0)
    log.put_ack("server-0", "first", 0, 5, "serving")
    for name in LENT:
        log.register(name, "first", "http://127.0.0.1:1", 60.0, lent=True)
        log.put_ack(name, "first", 0, 5, "serving")
    yield log
    log.close()


@in_event_loop
async def test_a_recall_waits_until_every_living_lent_server_sleeps_and_for_no_other(log: VersionLog) -> None:
    gpus = SharedGpus(log, deadline_s=20.0)
    recall = asyncio.create_task(gpus.recall())
    while log.wish() != "sleep" or WAIT not in [wait.name for wait in waits.active()]:
        await asyncio.wait([recall], timeout=0.01)
    log.put_state("lent-0", "first", "asleep")
    await asyncio.wait([recall], timeout=0.1)
    assert not recall.done(), "lent-1 still uses its device"
    log.put_state("lent-1", "first", "asleep")
    await recall
    assert log.wish() == "sleep"
    assert log.servers()["server-0"].state == "serving"
    await gpus.lend()
    assert log.wish() == "serve"


@in_event_loop
async def test_a_server_that_does_not_fall_asleep_is_named_and_the_others_are_woken(log: VersionLog) -> None:
    log.put_state("lent-0", "first", "asleep")
    with pytest.raises(WaitTimeout, match="lent-1 is serving"):
        await SharedGpus(log, deadline_s=0.05).recall()
    assert log.wish() == "serve"


@in_event_loop
async def test_a_server_whose_host_died_is_not_waited_for_after_its_lease(tmp_path: Path) -> None:
    log = open_log(str(tmp_path), "other")
    log.register("lent-0", "first", "http://127.0.0.1:1", 0.1, lent=True)
    await SharedGpus(log, deadline_s=20.0).recall()
    log.close()


@in_event_loop
async def test_serving_is_what_a_lent_server_says_not_another_one(log: VersionLog) -> None:
    gpus = SharedGpus(log, deadline_s=20.0)
    assert gpus.await_serving(0.01)
    for name in LENT:
        log.put_state(name, "first", "asleep")
    assert not gpus.await_serving(0.01), "server-0 serves on a device of its own"
    asked = asyncio.create_task(waits.in_thread(gpus.await_serving, 20.0))
    log.put_state("lent-1", "first", "updating")
    await asyncio.wait([asked], timeout=0.05)
    assert not asked.done()
    log.put_ack("lent-1", "first", 0, 5, "serving")
    assert await asked


def test_servers_are_counted_by_whose_devices_they_are_on(log: VersionLog) -> None:
    gpus = SharedGpus(log, deadline_s=20.0)
    assert gpus.num_servers() == (2, 1)
    log.leave("lent-0", "first")
    assert gpus.num_servers() == (1, 1)
