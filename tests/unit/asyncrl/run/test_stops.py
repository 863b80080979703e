"""A stop of the trainer cluster: every rank has its grace time, none is started again, and what matters is raised."""

import asyncio
import threading

import pytest

from asyncrl.cluster import Failure
from asyncrl.config import Config, RunConfig, TrainerConfig
from asyncrl.errors import AsyncrlError, CheckpointError
from asyncrl.run import train
from asyncrl.run.train import Supervisor
from buffer import BufferConfig, ReplayBuffer


class Rank:
    """A rank that runs until it is stopped, and ends as it was told to."""

    def __init__(self, failure=None):
        self._failure, self.ended = failure, False

    def exit_code(self):
        return None if not self.ended else (0 if self._failure is None else self._failure.exit_code)

    def failure(self):
        return self._failure if self.ended else None


class Cluster:
    """Remembers how ranks were stopped, and that none was started."""

    def __init__(self):
        self.children, self.stops = [], []

    async def stop(self, ranks, *, timeout_s=None):
        self.stops.append(timeout_s)
        for rank in ranks:
            rank.ended = True


class View:
    """Keeps what it is told."""

    def __init__(self):
        self.messages = []

    def message(self, text):
        self.messages.append(text)

    def update(self, reports):
        """Nothing is shown."""


@pytest.fixture
def supervised(tmp_path, monkeypatch):
    """Watch ranks that end in these ways until `ask` has asked for a stop; (messages, timeouts of stops)."""
    buffer = ReplayBuffer.in_memory("toy", BufferConfig())
    cluster, view = Cluster(), View()
    monkeypatch.setattr(train, "open_cluster", lambda *args, **kwargs: cluster)
    config = Config(run=RunConfig(name="toy", dir=tmp_path), trainer=TrainerConfig(stop_grace_s=37.0))

    async def watched(failures, ask):
        supervisor, stop = Supervisor(config, "", buffer, held_out=0), asyncio.Event()
        supervisor._ranks = [Rank(failure) for failure in failures]
        watching = asyncio.create_task(supervisor._watch(view, None, tmp_path, None, stop))
        ask(stop, buffer)
        async with asyncio.timeout(20):
            await watching

    def run(failures, ask):
        asyncio.run(watched(failures, ask))
        return view.messages, cluster.stops

    return run


@pytest.mark.parametrize("ask", [lambda stop, buffer: stop.set(), lambda stop, buffer: buffer.stop()])
def test_a_signal_and_the_stop_command_give_every_rank_its_grace_time(supervised, ask):
    messages, stops = supervised([None, None], ask)
    assert stops == [37.0]
    assert messages == ["stopping: the trainer finishes its step and writes a checkpoint, within 37 s"]


def test_a_rank_that_is_killed_at_the_end_of_it_is_not_started_again(supervised):
    killed = Failure("rank-1", -9, "rank-1 ended by SIGKILL")
    messages, stops = supervised([None, killed], lambda stop, buffer: stop.set())
    assert stops == [37.0]
    assert messages[1:] == ["rank-1 ended by SIGKILL; a resume goes on from the newest checkpoint"]


def test_a_checkpoint_that_could_not_be_written_at_the_stop_is_raised(supervised):
    full = Failure("rank-0", CheckpointError.exit_code, "the disk is full")
    with pytest.raises(AsyncrlError, match="the disk is full") as raised:
        supervised([full], lambda stop, buffer: stop.set())
    assert raised.value.exit_code == CheckpointError.exit_code


def test_a_stop_that_was_asked_for_before_the_start_is_not_obeyed(tmp_path, monkeypatch):
    buffer = ReplayBuffer.in_memory("toy", BufferConfig())
    buffer.stop()
    monkeypatch.setattr(train, "open_cluster", lambda *args, **kwargs: Cluster())
    supervisor = Supervisor(Config(run=RunConfig(name="toy", dir=tmp_path)), "", buffer, held_out=0)
    rank, view = Rank(), View()
    supervisor._ranks = [rank]
    finished = threading.Timer(1.0, lambda: setattr(rank, "ended", True))
    finished.start()
    asyncio.run(supervisor._watch(view, None, tmp_path, None, asyncio.Event()))
    assert view.messages == []
