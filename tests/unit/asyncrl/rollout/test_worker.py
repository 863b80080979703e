"""The worker over a buffer in memory and servers that misbehave on order."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from asyncrl import waits
from asyncrl.envs.base import Reward, StepResult
from asyncrl.inference.batching import MAX_TOKENS
from asyncrl.rollout.group import GroupSettings
from asyncrl.rollout.prompts import PromptOrder
from asyncrl.rollout.worker import ADMISSION, FINISH
from buffer import BufferConfig, Group, StalenessConfig
from buffer.answers import Leased
from buffer.versions import pack
from tests.support.event_loop import in_event_loop
from tests.support.fake_sglang import DROP
from tests.support.worker_cluster import GROUP, Scored, WorkerCluster, until, worker_cluster

RENEW_OFTEN = GroupSettings(renew_every_s=0.02)


@pytest.fixture
def cluster() -> Iterator[WorkerCluster]:
    with worker_cluster() as made:
        yield made


@in_event_loop
async def test_whole_groups_arrive_with_their_prompts_rewards_and_versions(cluster: WorkerCluster) -> None:
    """Siblings are sampled with seeds of their own (B086), and belong together by their ordinal (B085)."""
    server = cluster.server()
    cluster.score = lambda row, text: Reward(float(row.index), None, {"length": float(len(text))})
    cluster.train()
    async with cluster.working():
        groups = await cluster.lease(2)
    order = PromptOrder(10, 0, True)
    assert sorted(group.ordinal for group in groups) == [0, 1]
    for group in groups:
        assert group.data_source == "train"
        assert group.extra_info["index"] == order.index(group.ordinal)
        assert [trajectory.reward for trajectory in group.trajectories] == [order.index(group.ordinal)] * GROUP
        assert group.number_ranges() == {0: (0, 0)}
        assert all(not trajectory.extra_info for trajectory in group.trajectories), "text is for evaluations only"
    seeds = [body["sampling_params"]["sampling_seed"] for body in server.questions()]
    assert len(set(seeds)) == len(seeds) >= 2 * GROUP


@in_event_loop
async def test_the_same_run_again_draws_the_same_tokens_with_other_workers_and_slots(cluster: WorkerCluster) -> None:
    """Seeds that differ between siblings (B086) are still the same in every run."""
    cluster.server()
    cluster.train()
    async with cluster.working(slots=1):
        first = await cluster.lease(2)
    with ExitStack() as stack:
        again = WorkerCluster(stack, BufferConfig(), StalenessConfig())
        again.server()
        again.server()
        again.train()
        async with again.working(slots=8):
            second = await again.lease(2)

    def tokens(groups: list[Group]) -> dict[int, list[list[int]]]:
        return {g.ordinal: [t.rows[0].token_ids.tolist() for t in g.trajectories] for g in groups}

    assert tokens(first) == tokens(second)


@in_event_loop
async def test_before_a_trainer_the_worker_waits_and_says_why_then_starts_at_once(cluster: WorkerCluster) -> None:
    cluster.server()
    async with cluster.working() as (worker, _):
        await until(lambda: any(wait.name == ADMISSION for wait in waits.active()))
        assert worker.facts()["not_admitted"] == "no_trainer"
        cluster.train()
        assert len(await cluster.lease(2)) == 2
        assert worker.facts()["not_admitted"] in ("", "window")
    facts = cluster.buffer.reports()["worker-0"]
    assert facts["episodes"] == 2 * GROUP
    assert float(facts["sampled_tokens"]) > 0
    assert float(facts[f"wait/{ADMISSION}"]) > 0


@in_event_loop
async def test_a_straggler_holds_one_slot_and_the_next_prompt_gets_the_others(cluster: WorkerCluster) -> None:
    server = cluster.server()
    cluster.train(per_version=3)
    server.script.append("hold")
    async with cluster.working(slots=GROUP, max_new_tokens=MAX_TOKENS + 1):
        await cluster.counted(ready=2, in_flight=1)
        server.release()
        assert len(await cluster.lease(3)) == 3


@in_event_loop
async def test_a_server_that_dies_mid_episode_is_left_and_the_group_is_whole(cluster: WorkerCluster) -> None:
    dying = cluster.server()
    cluster.server()
    cluster.train()
    dying.script.extend([DROP] * 3)
    async with cluster.working() as (worker, _):
        groups = await cluster.lease(2)
        assert float(worker.facts()["answers_lost"]) >= 1
    assert all(len(group.trajectories) == GROUP for group in groups)


@in_event_loop
async def test_an_outage_fails_the_group_which_is_played_again_and_is_never_an_answer(cluster: WorkerCluster) -> None:
    """B006, B009: the failed group is counted once, its slots are free again, and the batch is full."""
    server = cluster.server()
    cluster.train()
    server.script.extend([(500, {"error": "down"})] * 2)
    async with cluster.working(slots=1) as (worker, _):
        groups = await cluster.lease(2)
        assert worker.facts()["failed_server_failed"] == 1
    assert sorted(group.gid for group in groups) == ["0.2", "1.1"]
    assert cluster.buffer.audit().by_reason["server_failed"] == 1


@in_event_loop
async def test_a_failed_reward_fails_no_group(cluster: WorkerCluster) -> None:
    cluster.server()
    cluster.score = lambda row, text: Reward(None, "timed out")
    cluster.train()
    async with cluster.working() as (worker, _):
        groups = await cluster.lease(2)
        assert float(worker.facts()["rewards_failed"]) >= 2 * GROUP
    assert {t.reward_error for group in groups for t in group.trajectories} == {"timed out"}


@in_event_loop
async def test_an_open_evaluation_comes_first_and_its_texts_are_kept(cluster: WorkerCluster) -> None:
    cluster.server()
    cluster.train()
    evaluation = cluster.buffer.open_evaluation(pack(cluster.branch, 0), num_prompts=2, group_size=1)
    async with cluster.working(slots=1):
        await cluster.counted(ready=2)
        assert evaluation.counts()["ready"] == 2
    leased = evaluation.lease(cluster.branch, 0, 0, 2)
    assert isinstance(leased, Leased)
    groups = [evaluation.fetch(entry) for entry in leased.entries]
    assert [group.extra_info["index"] for group in groups] == [0, 1], "held-out prompts are in file order"
    assert {group.data_source for group in groups} == {"held_out"}
    assert dict(groups[1].trajectories[0].extra_info)["prompt_text"] == "user: 1"


@in_event_loop
async def test_a_graceful_stop_finishes_what_is_in_flight_and_starts_nothing(cluster: WorkerCluster) -> None:
    server = cluster.server(hold=True)
    cluster.train()
    async with cluster.working() as (_, stop):
        await cluster.counted(in_flight=2)
        stop.set()
        await until(lambda: any(wait.name == FINISH for wait in waits.active()))
        server.release()
    assert cluster.buffer.counts()["ready"] == 2
    assert cluster.buffer.audit().ok


@in_event_loop
async def test_a_group_that_is_late_for_a_graceful_stop_is_given_back_at_no_cost(cluster: WorkerCluster) -> None:
    cluster.server(hold=True)
    cluster.train()
    async with cluster.working(stop_timeout_s=0.05):
        await cluster.counted(in_flight=2)
    assert cluster.buffer.counts()["waiting"] == 2
    assert cluster.buffer.audit().by_reason["abandoned"] == 2


@in_event_loop
async def test_cancelling_gives_everything_back_at_once(cluster: WorkerCluster) -> None:
    server = cluster.server(hold=True)
    cluster.train()
    running = asyncio.create_task(cluster.worker().run(asyncio.Event()))
    await cluster.counted(in_flight=2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cluster.buffer.counts()["waiting"] == 2
    while server.running:  # the closed connections have aborted the requests
        server.release()


@in_event_loop
async def test_a_run_that_was_stopped_gets_its_groups_back_and_goes_on_when_it_is_resumed(
    cluster: WorkerCluster,
) -> None:
    server = cluster.server(hold=True)
    cluster.train()
    async with cluster.working(groups=RENEW_OFTEN) as (worker, _):
        await cluster.counted(in_flight=2)
        cluster.buffer.stop()
        await cluster.counted(waiting=2)
        await until(lambda: worker.facts()["not_admitted"] == "stopped")
        server.hold = False
        cluster.buffer.resume()
        assert len(await cluster.lease(2)) == 2


@in_event_loop
async def test_claims_are_renewed_with_the_oldest_version_and_a_lost_claim_drops_the_group(
    cluster: WorkerCluster,
) -> None:
    server = cluster.server(hold=True)
    cluster.train(limit=1, per_version=1)
    async with cluster.working(groups=RENEW_OFTEN) as (worker, _):
        await cluster.counted(in_flight=2)
        for _ in range(3):  # three claims' time passes, and the renewals keep them
            cluster.now_ms += 40_000
            await waits.pause("test", 0.1)
            cluster.buffer.sweep()
        assert cluster.buffer.counts()["in_flight"] == 2
        cluster.now_ms += 3_600_000
        cluster.buffer.sweep()
        await until(lambda: worker.facts().get("groups_fenced") == 2.0)
        server.release()
        assert len(await cluster.lease(1)) == 1


@in_event_loop
async def test_a_fault_of_ours_ends_the_worker_and_frees_the_claim(cluster: WorkerCluster) -> None:
    cluster.server()
    cluster.train()
    worker = cluster.worker()

    async def broken(*args: object) -> None:
        raise ZeroDivisionError("a fault")

    worker._player.play = broken  # type: ignore[method-assign,assignment]  # a fault cannot be ordered otherwise
    with pytest.raises(ZeroDivisionError):
        await worker.run(asyncio.Event())
    counts = cluster.buffer.counts()
    assert counts["in_flight"] == 0
    assert cluster.buffer.audit().by_reason["worker_error"] >= 1


def test_one_process_can_play_in_one_event_loop_after_another(cluster: WorkerCluster) -> None:
    cluster.server()
    cluster.train()

    async def play(step: int) -> int:
        async with cluster.working():
            return len(await cluster.lease(1, step))

    assert [asyncio.run(play(step)) for step in range(2)] == [1, 1]


@in_event_loop
async def test_the_ledger_learns_a_groups_version_from_its_first_tokens_not_from_the_next_renewal(
    cluster: WorkerCluster,
) -> None:
    cluster.server()
    cluster.train(limit=1, per_version=1)
    tool = asyncio.Event()

    class SlowTool(Scored):
        async def step(self, text: str, finish_reason: str) -> StepResult:
            await tool.wait()
            return await super().step(text, finish_reason)

    cluster.make_environment = lambda: SlowTool(lambda row, text: cluster.score(row, text))
    worker, stop = cluster.worker(groups=GroupSettings(renew_every_s=1000.0)), asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    try:
        books = cluster.buffer._store.books
        await until(lambda: [books().cards[o].oldest for o in (0, 1) if o in books().cards] == [(0, 0), (0, 0)])
        tool.set()
        assert len(await cluster.lease(1)) == 1
    finally:
        stop.set()
        await running
