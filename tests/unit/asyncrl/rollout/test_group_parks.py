"""Parking while a group is played: at intervals, beside its end, and against everything that may end it meanwhile."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from asyncrl import waits
from asyncrl.rollout.group import GroupSettings
from asyncrl.rollout.worker import FINISH, Worker
from buffer import StalenessConfig
from buffer.answers import Claim
from tests.support.event_loop import in_event_loop
from tests.support.worker_cluster import GROUP, WorkerCluster, until, worker_cluster

OFTEN = GroupSettings(renew_every_s=15.0, park_every_s=0.03)
LONG: dict[str, Any] = {"slots": GROUP, "max_new_tokens": 100}  # each episode has a request of its own


@pytest.fixture
def cluster() -> Iterator[WorkerCluster]:
    with worker_cluster() as made:
        made.server()
        made.train(per_version=1)
        yield made


def hold_the_first(cluster: WorkerCluster) -> None:
    """One episode of the next group stays at the server; its siblings finish."""
    cluster.servers[0].script.append("hold")


async def siblings_parked(cluster: WorkerCluster, worker: Worker) -> float:
    """Wait until the finished siblings of the one that is held are parked; how often the group was parked by then."""

    def all_parked() -> bool:
        card = cluster.buffer._store.books().cards.get(0)
        return card is not None and len(card.parked.sampled) == GROUP - 1

    await until(all_parked, lambda: str(worker.facts()))
    return float(worker.facts()["partials_parked"])


class Gate:
    """A call of the buffer that waits, in its thread, until it is let through."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call, self.entered, self.open = call, threading.Event(), threading.Event()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.entered.set()
        assert self.open.wait(20)
        return self._call(*args, **kwargs)


def reasons(cluster: WorkerCluster) -> dict[str, int]:
    audit = cluster.buffer.audit()
    assert audit.ok
    assert audit.tokens.problems() == []
    return {reason: count for reason, count in audit.by_reason.items() if not reason.startswith("denied")}


@in_event_loop
async def test_a_group_is_parked_at_intervals_and_only_when_something_is_new(cluster: WorkerCluster) -> None:
    hold_the_first(cluster)
    async with cluster.working(groups=OFTEN, **LONG) as (worker, _):
        times = await siblings_parked(cluster, worker)
        await waits.pause("test", 5 * 0.03)  # several intervals in which nothing is sampled
        assert worker.facts()["partials_parked"] == times
        held = cluster.buffer.audit().tokens.held
        assert held > 0
        cluster.servers[0].release()
        (group,) = await cluster.lease(1)
    assert len(group.trajectories) == GROUP
    assert sum(t.num_sampled for t in group.trajectories) > held
    assert cluster.buffer.audit().tokens.held == sum(t.num_sampled for t in group.trajectories), "parked ones are gone"
    assert reasons(cluster) == {}


@in_event_loop
async def test_a_worker_that_is_lost_leaves_what_it_parked_last_to_the_next_owner(cluster: WorkerCluster) -> None:
    hold_the_first(cluster)
    async with cluster.working(groups=OFTEN, **LONG) as (worker, stop):
        await siblings_parked(cluster, worker)
        stop.set()  # so that it does not reserve what it has lost
        await until(lambda: any(wait.name == FINISH for wait in waits.active()))
        cluster.now_ms += 3_600_000
        cluster.buffer.sweep()
        claim = cluster.buffer.reserve("next")
        assert isinstance(claim, Claim)
        assert claim.attempt == 2
        partials = cluster.buffer.fetch_partials(claim)
        assert partials is not None
        assert [episode.done for episode in partials.episodes] == [True] * (GROUP - 1)
        cluster.servers[0].release()
        await until(lambda: worker.facts().get("groups_fenced") == 1)
    assert cluster.buffer.fetch_partials(claim) == partials, "the late call of the lost one changes nothing"
    cluster.buffer.abandon(claim)


@in_event_loop
async def test_a_park_that_is_under_way_ends_before_the_group_goes_in(
    cluster: WorkerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_the_first(cluster)
    gate = Gate(cluster.buffer.park)
    monkeypatch.setattr(cluster.buffer, "park", gate)
    async with cluster.working(groups=OFTEN, **LONG) as (worker, _):
        await waits.in_thread(gate.entered.wait, 20)
        cluster.servers[0].release()
        await until(lambda: worker.facts().get("episodes") == GROUP)
        assert cluster.buffer.counts()["in_flight"] == 1
        gate.open.set()
        assert len(await cluster.lease(1)) == 1
    assert reasons(cluster) == {}


@in_event_loop
async def test_a_group_that_is_being_handed_in_is_not_given_back(
    cluster: WorkerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(cluster.buffer.put)
    monkeypatch.setattr(cluster.buffer, "put", gate)
    running = asyncio.create_task(cluster.worker(**LONG).run(asyncio.Event()))
    await waits.in_thread(gate.entered.wait, 20)
    running.cancel()
    gate.open.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cluster.buffer.counts()["ready"] == 1
    assert reasons(cluster) == {}


@in_event_loop
async def test_a_stop_that_comes_while_the_last_reward_is_known_does_not_lose_the_group(
    cluster: WorkerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(cluster.buffer.put)
    monkeypatch.setattr(cluster.buffer, "put", gate)
    async with cluster.working(stop_timeout_s=0.01, **LONG) as (worker, stop):
        await waits.in_thread(gate.entered.wait, 20)
        stop.set()
        await until(worker._groups._halted.is_set)
        gate.open.set()
    assert cluster.buffer.counts()["ready"] == 1
    assert reasons(cluster) == {}


@in_event_loop
async def test_a_group_whose_claim_is_lost_by_the_time_it_is_parked_is_dropped(cluster: WorkerCluster) -> None:
    cluster.servers[0].hold = True
    async with cluster.working(stop_timeout_s=0.01, **LONG) as (worker, stop):
        await until(lambda: len(cluster.servers[0].running) == GROUP)
        cluster.now_ms += 3_600_000
        cluster.buffer.sweep()
        stop.set()
    assert worker.facts()["groups_fenced"] == 1
    claim = cluster.buffer.reserve("next")
    assert isinstance(claim, Claim)
    assert claim.parked is None


@in_event_loop
async def test_cancelling_says_what_is_lost_by_it(cluster: WorkerCluster) -> None:
    hold_the_first(cluster)
    worker = cluster.worker(groups=GroupSettings(renew_every_s=15.0), **LONG)
    running = asyncio.create_task(worker.run(asyncio.Event()))
    await until(lambda: worker.facts().get("episodes") == GROUP - 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    fates = cluster.buffer.audit().tokens.fates
    spent = fates["failed/abandoned", "train"]
    assert spent.trajectories == GROUP - 1
    assert spent.tokens == worker.facts()["sampled_tokens"] > 0  # type: ignore[operator]  # a number


@in_event_loop
async def test_a_failed_group_leaves_nothing_parked_and_its_tokens_are_accounted(cluster: WorkerCluster) -> None:
    hold_the_first(cluster)
    (server,) = cluster.servers
    async with cluster.working(groups=OFTEN, **LONG) as (worker, _):
        await siblings_parked(cluster, worker)
        sampled = cluster.buffer.audit().tokens.held
        server.script.extend([(400, {"error": "too long"})] * 20)
        server._in_loop(lambda: [f.set_result("abort") for f in server.running.values()])  # asked again, and refused
        await until(lambda: float(worker.facts().get("failed_request_refused", 0)) >= 1)
        server.script.clear()
    ledger = cluster.buffer.audit().tokens
    assert ledger.fates["failed/request_refused", "train"].tokens > sampled
    assert ledger.problems() == []


@in_event_loop
async def test_a_doomed_group_is_not_parked_for_somebody_else_to_be_doomed_with() -> None:
    staleness = StalenessConfig(policy="drop", cancel_doomed=True, order="ordinal")
    with worker_cluster(staleness=staleness) as cluster:
        cluster.server()
        cluster.train(limit=1, per_version=1)
        hold_the_first(cluster)
        groups = GroupSettings(renew_every_s=0.02, park_every_s=0.03)
        async with cluster.working(groups=groups, **LONG) as (worker, stop):
            await siblings_parked(cluster, worker)
            stop.set()
            cluster.buffer.advance(cluster.branch, 2, limit=1, groups_per_version=1)
            await until(lambda: worker.facts().get("groups_doomed") == 1)
        claim = cluster.buffer.reserve("next")
        assert isinstance(claim, Claim)
        assert claim.attempt == 2
        assert claim.parked is not None
        assert sum(claim.parked.sampled) == 0, "there is nothing to go on from but the prompt"
        lost = cluster.buffer.audit().tokens.fates["failed/abandoned", "train"]
        assert lost.trajectories == GROUP, "also the one whose tokens were still at its server"
