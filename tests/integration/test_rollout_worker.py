"""The whole rollout side over a real Redis: host, local server, fleet, worker, rewards; the test is the trainer."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncrl import waits
from asyncrl.config import RolloutConfig
from asyncrl.data.rows import PromptRow
from asyncrl.envs import ENVIRONMENTS, EnvironmentDeps
from asyncrl.envs.rewards.pool import RewardPool
from asyncrl.inference.fleet import Fleet
from asyncrl.rollout.chat import ChatTemplate
from asyncrl.rollout.episode import EpisodePlayer
from asyncrl.rollout.group import GroupSettings
from asyncrl.rollout.prompts import PromptOrder
from asyncrl.rollout.reservation import Prompts
from asyncrl.rollout.worker import Worker, WorkerSettings
from buffer import BufferConfig, Group, ReplayBuffer
from buffer.answers import Leased
from buffer.versions import pack
from tests.support.episode_settings import episode_settings
from tests.support.event_loop import in_event_loop
from tests.support.redis_server import RedisServer, running_redis
from tests.support.rollout_cluster import CONTEXT, RolloutCluster, Trainer

PER_VERSION, GROUP_SIZE, LIMIT = 4, 3, 1


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


def make_row(index: int, digits: str) -> PromptRow:
    message = {"role": "user", "content": f"sort {digits}"}
    return PromptRow(index, "sort_digits", (message,), "".join(sorted(digits)), {})


def make_worker(cluster: RolloutCluster, buffer: ReplayBuffer, fleet: Fleet, rewards: RewardPool) -> Worker:
    settings = episode_settings(max_attempts=5, context_length=CONTEXT, max_prompt_tokens=32)
    deps = EnvironmentDeps(rewards=rewards, config=RolloutConfig())
    chat = ChatTemplate.from_model_dir(cluster.model_dir)
    rows = [make_row(i, str(321 + i)) for i in range(50)]
    return Worker(
        name="worker-0",
        buffer=buffer,
        fleet=fleet,
        player=EpisodePlayer(chat, fleet, lambda: ENVIRONMENTS["single_turn"](deps), settings),
        train=Prompts(rows, PromptOrder(len(rows), 0, True), GROUP_SIZE),
        held_out=Prompts(rows[:2], PromptOrder(2, 0, False), 1),
        settings=WorkerSettings(
            slots=16,
            groups=GroupSettings(renew_every_s=0.2),
            stop_timeout_s=20.0,
            park_timeout_s=5.0,
            sweep_every_s=1.0,
            recheck_s=0.1,
        ),
    )


async def lease(ledger: ReplayBuffer, number: int, step: int, count: int) -> list[Group]:
    hints = await waits.in_thread(ledger.hints, "ready")

    def attempt() -> Leased | None:
        answer = ledger.lease(1, number, step, count)
        return answer if isinstance(answer, Leased) else None

    leased = await waits.until("test", attempt, why=lambda: str(ledger.counts()), wake=hints.wait, deadline_s=60.0)
    return [await waits.in_thread(ledger.fetch, entry) for entry in leased.entries]


async def train(buffer: ReplayBuffer, trainer: Trainer, step: int) -> list[Group]:
    """One step of a trainer: lease, new weights, advance."""
    groups = await lease(buffer, step, step, PER_VERSION)
    await waits.in_thread(trainer.step)
    await waits.in_thread(buffer.advance, 1, step + 1, limit=LIMIT, groups_per_version=PER_VERSION)
    return groups


@in_event_loop
async def test_groups_of_known_weights_keep_coming_while_versions_change_and_the_server_is_killed(
    redis: RedisServer, tmp_path: Path
) -> None:
    cluster = RolloutCluster(tmp_path, redis.url)
    buffer = ReplayBuffer.connect(redis.url, "run", BufferConfig())
    trainer = await asyncio.to_thread(cluster.trainer, 1)
    rewards, stop = RewardPool(1, 10.0), asyncio.Event()
    await rewards.start()
    async with cluster.running(cluster.host()) as fleet:
        working = asyncio.create_task(make_worker(cluster, buffer, fleet, rewards).run(stop))
        branch = buffer.recover("nonce", None, number=0, limit=LIMIT, groups_per_version=PER_VERSION)
        assert branch == 1
        await asyncio.to_thread(trainer.publisher.publish, pack(1, 0))
        groups = []
        for step in range(6):
            if step == 3:
                cluster.kill_server("server-0")
            groups += [(step, group) for group in await train(buffer, trainer, step)]
        evaluation = await waits.in_thread(buffer.open_evaluation, pack(1, 6), num_prompts=2, group_size=1)
        held_out = await lease(evaluation, 6, 0, 2)
        stop.set()
        await working
    rewards.close()

    assert sorted(group.ordinal for _, group in groups) == list(range(6 * PER_VERSION))
    for step, group in groups:
        assert len(group.trajectories) == GROUP_SIZE
        assert all(trajectory.reward is not None for trajectory in group.trajectories)
        for span in (s for trajectory in group.trajectories for row in trajectory.rows for s in row.spans):
            assert span.digest == cluster.log.digest_of(span.version), "the trainer knows the weights of every token"
            assert step - (span.version & 0xFFFFFFFF) <= LIMIT
    assert {span.version for group in held_out for t in group.trajectories for span in t.rows[0].spans} == {pack(1, 6)}
    assert all("prompt_text" in trajectory.extra_info for group in held_out for trajectory in group.trajectories)
    assert buffer.audit().ok
    assert buffer.counts()["in_flight"] == 0
    assert float(buffer.reports()["worker-0"]["episodes"]) >= 6 * PER_VERSION * GROUP_SIZE
    assert cluster.reports["server-0"]["restarts"] == 1
    buffer.close()
