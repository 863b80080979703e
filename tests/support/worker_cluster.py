"""A rollout worker over a buffer in memory and fake servers, with the test as trainer and as clock."""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

from asyncrl import waits
from asyncrl.config.data import CurriculumConfig
from asyncrl.data.rows import PromptRow
from asyncrl.envs.base import Environment, Message, Reward, StepResult
from asyncrl.inference.board import FixedBoard
from asyncrl.inference.client import ServerClient
from asyncrl.inference.fleet import Fleet, FleetLimits
from asyncrl.rollout.episode import EpisodePlayer
from asyncrl.rollout.group import GroupSettings
from asyncrl.rollout.prompts import PromptOrder
from asyncrl.rollout.reservation import Prompts
from asyncrl.rollout.worker import Worker, WorkerSettings
from buffer import BufferConfig, Group, ReplayBuffer, StalenessConfig
from buffer.answers import Leased
from tests.support.char_chat import CharChat
from tests.support.episode_settings import episode_settings
from tests.support.fake_sglang import VOCAB, FakeServer, running_fake

GROUP = 3
EPISODE = episode_settings(context_length=128)


class Scored:
    """An environment of one turn whose reward the test chooses."""

    def __init__(self, score: Callable[[PromptRow, str], Reward]) -> None:
        self._score = score

    async def reset(self, row: PromptRow, *, seed: int) -> tuple[Message, ...]:
        self._row = row
        return row.messages

    async def step(self, text: str, finish_reason: str) -> StepResult:
        return StepResult(done=True, reward=self._score(self._row, text))


def rows(count: int, source: str) -> list[PromptRow]:
    """Rows whose only message is their index."""
    return [PromptRow(i, source, ({"role": "user", "content": str(i)},), None, {}) for i in range(count)]


async def until(condition: Callable[[], bool], why: Callable[[], str] = str) -> None:
    """Wait until something that is no event holds."""
    await waits.until("test", lambda: condition() or None, why=why, deadline_s=20.0, recheck_s=0.01)


class WorkerCluster:
    """A buffer with a trainer's branch, servers, and workers to start."""

    def __init__(self, stack: ExitStack, config: BufferConfig, staleness: StalenessConfig) -> None:
        self.now_ms = 1_000_000
        self.buffer = ReplayBuffer.in_memory("run", config, staleness, clock=lambda: self.now_ms)
        self._stack = stack
        self.servers: list[FakeServer] = []
        self.score: Callable[[PromptRow, str], Reward] = lambda row, text: Reward(1.0)
        self.make_environment: Callable[[], Environment] = lambda: Scored(lambda row, text: self.score(row, text))
        self.branch = self.version = 0
        self.with_baseline = False
        self.curriculum: CurriculumConfig | None = None

    def server(self, **settings: Any) -> FakeServer:
        """One more server."""
        self.servers.append(self._stack.enter_context(running_fake(**settings)))
        return self.servers[-1]

    def train(self, *, limit: int = 0, per_version: int = 2) -> None:
        """Open the trainer's branch, which admits workers."""
        self.branch = self.buffer.recover("nonce", None, number=0, limit=limit, groups_per_version=per_version)

    def worker(
        self,
        *,
        slots: int = 8,
        stop_timeout_s: float = 10.0,
        park_timeout_s: float = 10.0,
        groups: GroupSettings | None = None,
        server_wait_s: float = 10.0,
        **episode: Any,
    ) -> Worker:
        """A worker; `episode` are settings of its episodes."""
        fleet = Fleet(
            FixedBoard([server.url for server in self.servers], version=self.version),
            lambda url: ServerClient(url, vocab_size=VOCAB),
            FleetLimits(request_timeout_s=10.0, server_wait_s=server_wait_s),
        )
        player = EpisodePlayer(CharChat(), fleet, lambda: self.make_environment(), replace(EPISODE, **episode))
        return Worker(
            name="worker-0",
            buffer=self.buffer,
            fleet=fleet,
            player=player,
            train=Prompts(rows(10, "train"), PromptOrder(10, 0, True), GROUP, self.with_baseline, self.curriculum),
            held_out=Prompts(rows(2, "held_out"), PromptOrder(2, 0, False), 1),
            settings=WorkerSettings(
                slots=slots,
                groups=groups or GroupSettings(renew_every_s=15.0),
                stop_timeout_s=stop_timeout_s,
                park_timeout_s=park_timeout_s,
                sweep_every_s=0.0,
                report_every_s=0.05,
                recheck_s=0.02,
            ),
        )

    @asynccontextmanager
    async def working(self, **settings: Any) -> AsyncIterator[tuple[Worker, asyncio.Event]]:
        """A worker that runs during the block and is stopped in good order after it; `settings` as of `worker`."""
        worker, stop = self.worker(**settings), asyncio.Event()
        running = asyncio.create_task(worker.run(stop))
        try:
            yield worker, stop
        finally:
            stop.set()
            await running

    async def lease(self, count: int, step: int = 0, number: int = 0) -> list[Group]:
        """Wait for a batch, as the trainer does."""
        hints = self.buffer.hints("ready")

        def attempt() -> Leased | None:
            answer = self.buffer.lease(self.branch, number, step, count)
            return answer if isinstance(answer, Leased) else None

        leased = await waits.until("test", attempt, why=str, wake=hints.wait, deadline_s=20.0)
        return [self.buffer.fetch(entry) for entry in leased.entries]

    async def counted(self, **expected: int) -> None:
        """Wait until the states of the ledger are these."""

        def as_expected() -> bool:
            counts = self.buffer.counts()
            return all(counts[state] == number for state, number in expected.items())

        await until(as_expected, lambda: str(self.buffer.counts()))


class Complaints(logging.Handler):
    """What asyncio says about tasks and futures that nobody looked after."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@contextmanager
def worker_cluster(
    config: BufferConfig | None = None, staleness: StalenessConfig | None = None
) -> Iterator[WorkerCluster]:
    """A cluster for the block; at its end asyncio must have nothing to complain about."""
    complaints = Complaints()
    logging.getLogger("asyncio").addHandler(complaints)
    with ExitStack() as stack:
        yield WorkerCluster(stack, config or BufferConfig(), staleness or StalenessConfig())
    gc.collect()  # a forgotten future complains when it is collected
    logging.getLogger("asyncio").removeHandler(complaints)
    assert complaints.texts == []
