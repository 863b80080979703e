"""The greedy episode of a group: played beside the others, marked, parked and resumed with them, and in no report."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, cast

import pytest

from asyncrl.data.policies import GREEDY_BASELINE, SAMPLED
from asyncrl.data.rows import PromptRow
from asyncrl.envs.base import Reward
from asyncrl.rollout.episode import EpisodeFailed, EpisodePlayer, EpisodeTask, PromptMemo
from asyncrl.rollout.group import GroupPlayer, GroupSettings
from asyncrl.rollout.pacing import Slots
from asyncrl.rollout.progress import Progress
from asyncrl.rollout.work import Work
from buffer import BufferConfig, Claim, Group, ReplayBuffer, Span, Trajectory
from buffer.versions import pack
from tests.support.event_loop import in_event_loop
from tests.support.worker_cluster import GROUP, WorkerCluster, until, worker_cluster

LONG: dict[str, Any] = {"max_new_tokens": 100}  # each episode has a request of its own
MARKS = [SAMPLED] * GROUP + [GREEDY_BASELINE]


@pytest.fixture
def cluster() -> Iterator[WorkerCluster]:
    with worker_cluster() as made:
        made.server(ends_at=24)
        made.train(per_version=1)
        made.with_baseline = True
        yield made


def marks(group: Group) -> list[str]:
    return [trajectory.policy for trajectory in group.trajectories]


@in_event_loop
async def test_a_group_brings_one_more_trajectory_that_was_played_greedily(cluster: WorkerCluster) -> None:
    async with cluster.working(top_p=0.9, top_k=50, temperature=0.7):
        (group,) = await cluster.lease(1)
    assert marks(group) == MARKS
    ways = [one["sampling_params"] for one in cluster.servers[0].questions()][: GROUP + 1]
    drawn = [(way["temperature"], way["top_p"], way["top_k"]) for way in ways]
    assert sorted(drawn) == [(0.0, 1.0, -1)] + [(0.7, 0.9, 50)] * GROUP
    prompts = {tuple(t.rows[0].token_ids[: t.rows[0].num_prompt_tokens].tolist()) for t in group.trajectories}
    assert len(prompts) == 1, "the baseline is of the same prompt"


@in_event_loop
async def test_a_held_out_prompt_has_none(cluster: WorkerCluster) -> None:
    evaluation = cluster.buffer.open_evaluation(pack(cluster.branch, 0), num_prompts=2, group_size=1)
    async with cluster.working():
        await until(lambda: evaluation.counts()["ready"] == 2, lambda: str(evaluation.counts()))
        leased = evaluation.lease(cluster.branch, 0, 1, 2)
        groups = [evaluation.fetch(entry) for entry in leased.entries]  # type: ignore[union-attr]  # both are ready
    assert [marks(group) for group in groups] == [[SAMPLED]] * 2


@in_event_loop
async def test_a_stopped_worker_parks_it_and_the_next_one_goes_on_greedily(cluster: WorkerCluster) -> None:
    (server,) = cluster.servers
    server.hold = True
    async with cluster.working(slots=GROUP + 1, stop_timeout_s=0.01, **LONG):
        await until(lambda: len(server.running) == GROUP + 1)
    server.hold = False
    claim = cluster.buffer.reserve("reader")
    assert isinstance(claim, Claim)
    parked = cluster.buffer.fetch_partials(claim)
    assert parked is not None
    before = [episode.trajectory.rows[0].token_ids.tolist() for episode in parked.episodes]
    assert len(before) == GROUP + 1
    cluster.buffer.abandon(claim)
    asked = len(server.questions())
    async with cluster.working(slots=GROUP + 1, **LONG):
        (group,) = await cluster.lease(1)
    again = server.questions()[asked : asked + GROUP + 1]
    greedy = [one["input_ids"] for one in again if one["sampling_params"]["temperature"] == 0]
    assert greedy == [before[-1]], "it goes on from its own tokens"
    assert marks(group) == MARKS
    rows = [trajectory.rows[0].token_ids.tolist() for trajectory in group.trajectories]
    assert [row[: len(b)] for row, b in zip(rows, before, strict=True)] == before
    assert cluster.buffer.audit().tokens.problems() == []


class FailingPlayer:
    """The greedy episode finishes; when it has, the first of the others fails."""

    async def cut(self, progress: Progress) -> None:
        raise AssertionError("nothing is at a server")

    async def play(self, task: EpisodeTask, progress: Progress, memo: PromptMemo) -> Trajectory:
        progress.builder.begin_row([1])
        length = 10 * (task.episode + 1)
        progress.builder.append_sampled([5] * length, [-0.5] * length, [Span(pack(1, 0), 70, length)])
        await asyncio.sleep(0)
        if task.is_greedy:
            return progress.finish(Reward(1.0), finish_reason="stop", num_turns=1, extra_info={})
        await asyncio.sleep(0)
        if task.episode == 0:
            raise EpisodeFailed("reward_failed", "boom")
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")


@in_event_loop
async def test_it_is_no_answer_in_the_report_on_lengths_but_its_tokens_are_accounted() -> None:
    buffer = ReplayBuffer.in_memory("run", BufferConfig())
    buffer.recover("nonce", None, number=0, limit=1, groups_per_version=4)
    player = GroupPlayer(cast(EpisodePlayer, FailingPlayer()), Slots(8), GroupSettings(renew_every_s=15.0))
    claim = buffer.reserve("worker")
    assert isinstance(claim, Claim)
    row = PromptRow(0, "digits", ({"role": "user", "content": "1"},), None, {})
    assert await player.play(Work(buffer, claim, row, "train", 2, has_baseline=True)) == "waiting"
    found = json.loads(player.lengths.as_fact())["digits"]
    assert (found["finished"], sum(found["cut"].values())) == ({}, 2)
    assert buffer.audit().tokens.fates["failed/reward_failed", "digits"].tokens == 10 + 20 + 30
