"""Trainer and servers take turns, over a version log in a folder."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncrl import waits
from asyncrl.errors import WaitTimeout
from asyncrl.inference.sharing import WAIT, SharedGpus
from tests.support.event_loop import in_event_loop
from weightsync.log import VersionLog, open_log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[VersionLog]:
    log = open_log(str(tmp_path), "run")
    for name in ("server-0", "server-1"):
        log.register(name, "first", "http://127.0.0.1:1", 60.0)
        log.put_ack(name, "first", 0, 5, "serving")
    yield log
    log.close()


@in_event_loop
async def test_training_waits_until_every_living_server_sleeps_and_then_lets_them_serve(log: VersionLog) -> None:
    gpus = SharedGpus(log, deadline_s=20.0)
    entered = asyncio.Event()

    async def train() -> None:
        async with gpus.for_training():
            entered.set()
            assert log.wish() == "sleep"

    training = asyncio.create_task(train())
    while log.wish() != "sleep" or WAIT not in [wait.name for wait in waits.active()]:
        await asyncio.wait([training], timeout=0.01)
    log.put_state("server-0", "first", "asleep")
    await asyncio.wait([training], timeout=0.1)
    assert not entered.is_set(), "server-1 still uses its device"
    log.put_state("server-1", "first", "asleep")
    await training
    assert entered.is_set()
    assert log.wish() == "serve"


@in_event_loop
async def test_a_server_that_does_not_fall_asleep_is_named_and_the_others_are_woken(log: VersionLog) -> None:
    log.put_state("server-0", "first", "asleep")
    with pytest.raises(WaitTimeout, match="server-1 is serving"):
        async with SharedGpus(log, deadline_s=0.05).for_training():
            raise AssertionError("a server still uses the device")
    assert log.wish() == "serve"


@in_event_loop
async def test_servers_wake_whatever_happens_in_training(log: VersionLog) -> None:
    for name in ("server-0", "server-1"):
        log.put_state(name, "first", "asleep")
    with pytest.raises(ZeroDivisionError):
        async with SharedGpus(log, deadline_s=20.0).for_training():
            raise ZeroDivisionError
    assert log.wish() == "serve"


@in_event_loop
async def test_a_trainer_that_starts_wakes_what_a_dead_one_left_asleep(log: VersionLog) -> None:
    log.put_wish("sleep")
    await SharedGpus(log, deadline_s=20.0).wake()
    assert log.wish() == "serve"


@in_event_loop
async def test_a_server_whose_host_died_is_not_waited_for_after_its_lease(tmp_path: Path) -> None:
    log = open_log(str(tmp_path), "other")
    log.register("server-0", "first", "http://127.0.0.1:1", 0.1)
    async with SharedGpus(log, deadline_s=20.0).for_training():
        pass
    log.close()
