"""A worker that is stopped: what its groups have so far is parked, and the next worker goes on from there."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from asyncrl import waits
from asyncrl.inference.protocol import Sampling
from asyncrl.rollout.group import GroupSettings
from asyncrl.rollout.worker import FINISH, Worker
from buffer import Group
from buffer.answers import Claim
from buffer.partials import Partials
from buffer.versions import pack
from tests.support.event_loop import in_event_loop
from tests.support.fake_sglang import DROP, FakeServer
from tests.support.worker_cluster import GROUP, WorkerCluster, until, worker_cluster

ENDS_AT = 24
LONG: dict[str, Any] = {
    "max_new_tokens": 100
}  # more than what shares a request, so that each episode has one of its own
QUICK = GroupSettings(renew_every_s=15.0, cut_timeout_s=0.2)


@pytest.fixture
def cluster() -> Iterator[WorkerCluster]:
    with worker_cluster() as made:
        made.server(ends_at=ENDS_AT)
        made.train(per_version=1)
        yield made


def parked_of(cluster: WorkerCluster) -> Partials | None:
    """What a next owner would begin with; it is given back to the next one."""
    claim = cluster.buffer.reserve("reader")
    assert isinstance(claim, Claim)
    partials = cluster.buffer.fetch_partials(claim)
    cluster.buffer.abandon(claim)
    return partials


def tokens(group: Group) -> list[list[int]]:
    return [trajectory.rows[0].token_ids.tolist() for trajectory in group.trajectories]


async def in_flight(server: FakeServer, count: int = GROUP) -> None:
    await until(lambda: len(server.running) == count)


async def stopped(cluster: WorkerCluster, **settings: Any) -> Worker:
    """A worker that is stopped while its group's answers are held by the server."""
    (server,) = cluster.servers
    server.hold = True
    async with cluster.working(slots=GROUP, stop_timeout_s=0.01, **LONG, **settings) as (worker, _):
        await in_flight(server)
    server.hold = False
    return worker


@in_event_loop
async def test_a_stopped_workers_tokens_appear_unchanged_in_the_group_of_the_next_one(cluster: WorkerCluster) -> None:
    first = await stopped(cluster)
    assert cluster.buffer.counts()["waiting"] == 1
    assert (first.facts()["partials_parked"], first.facts()["groups_halted"]) == (1, 1)
    partials = parked_of(cluster)
    assert partials is not None
    before = [list(episode.trajectory.rows[0].token_ids) for episode in partials.episodes]
    assert len(before) == GROUP
    (server,) = cluster.servers
    asked = len(server.questions())
    async with cluster.working(slots=GROUP, **LONG) as (second, _):
        (group,) = await cluster.lease(1)
    assert [one[: len(b)] for one, b in zip(tokens(group), before, strict=True)] == before
    again = [body["input_ids"] for body in server.questions()[asked : asked + GROUP]]
    assert sorted(again) == sorted(before), "the next owner asks for what comes after the parked tokens"
    facts = second.facts()
    assert (facts["partials_resumed"], facts["tokens_resumed"]) == (1, partials.num_sampled)
    assert cluster.buffer.audit().tokens.problems() == []


@in_event_loop
async def test_a_group_in_two_hands_equals_one_that_nobody_interrupted(cluster: WorkerCluster) -> None:
    await stopped(cluster)
    async with cluster.working(slots=GROUP, **LONG):
        (resumed,) = await cluster.lease(1)
    with worker_cluster() as other:
        other.server(ends_at=ENDS_AT)
        other.train(per_version=1)
        async with other.working(slots=GROUP, **LONG):
            (whole,) = await other.lease(1)
    assert tokens(resumed) == tokens(whole)
    spans = [t.rows[0].spans for t in resumed.trajectories]
    assert spans == [t.rows[0].spans for t in whole.trajectories]


@in_event_loop
async def test_a_worker_that_is_to_hurry_gives_its_groups_no_time_to_finish(cluster: WorkerCluster) -> None:
    (server,) = cluster.servers
    server.hold = True
    worker, stop, hurry = cluster.worker(slots=GROUP, stop_timeout_s=1000.0, **LONG), asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(worker.run(stop, hurry))
    await in_flight(server)
    stop.set()
    await until(lambda: any(wait.name == FINISH for wait in waits.active()))
    assert not running.done()
    hurry.set()
    await running
    assert worker.facts()["partials_parked"] == 1
    assert cluster.buffer.counts()["waiting"] == 1
    assert worker._slots.num_playing == 0


@in_event_loop
async def test_only_this_workers_requests_are_cut(cluster: WorkerCluster) -> None:
    (server,) = cluster.servers
    server.hold = True
    other = cluster.worker(slots=GROUP)._fleet
    await other.refresh()
    client = next(iter(other._servers.values())).client
    sampling = Sampling(max_new_tokens=100, temperature=1.0, top_p=1.0, top_k=-1, stop_token_ids=(2,), seed=7)
    foreign = asyncio.create_task(client.generate([1, 5], sampling, extra_key=None, deadline_s=20.0))
    await in_flight(server, 1)
    async with cluster.working(slots=GROUP, stop_timeout_s=0.01, **LONG):
        await in_flight(server, GROUP + 1)
    assert not foreign.done()
    server.release()
    assert (await foreign).finish_reason != "abort"
    await other.close()


@in_event_loop
async def test_a_server_that_cannot_cut_is_waited_for_and_what_it_answers_in_time_is_kept(
    cluster: WorkerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    (server,) = cluster.servers
    monkeypatch.setattr(server, "do_abort_request", None, raising=False)
    server.hold = True
    async with cluster.working(slots=GROUP, stop_timeout_s=0.01, **LONG) as (worker, stop):
        await in_flight(server)
        stop.set()
        await until(lambda: "/abort_request" in server.paths)
        server.release()
    assert worker.facts()["partials_parked"] == 1
    partials = parked_of(cluster)
    assert partials is not None
    assert [len(episode.trajectory.rows[0].token_ids) for episode in partials.episodes] == [ENDS_AT] * GROUP
    assert not any(episode.done for episode in partials.episodes), "they were not scored in a hurry"


@in_event_loop
async def test_a_server_that_answers_nothing_costs_its_tokens_and_no_more_than_the_deadline(
    cluster: WorkerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B007: an episode that never ends holds up nobody longer than that; its group is given to the next worker."""
    (server,) = cluster.servers
    monkeypatch.setattr(server, "do_abort_request", lambda body: (200, b""), raising=False)
    worker = await stopped(cluster, groups=QUICK)
    assert worker.facts()["groups_halted"] == 1
    assert "partials_parked" not in worker.facts()
    assert cluster.buffer.counts()["waiting"] == 1
    assert cluster.buffer.audit().by_reason["abandoned"] == 1
    assert parked_of(cluster) is None


@in_event_loop
async def test_a_request_that_was_on_its_way_when_it_was_cut_is_cut_again(cluster: WorkerCluster) -> None:
    (server,) = cluster.servers
    plain, seen = server.do_abort_request, []

    def deaf_at_first(body: dict[str, str]) -> tuple[int, object]:
        seen.append(body["rid"])
        return plain(body) if seen.count(body["rid"]) > 1 else (200, b"")

    server.do_abort_request = deaf_at_first  # type: ignore[method-assign]  # it has not heard of the request yet
    worker = await stopped(cluster)
    assert worker.facts()["partials_parked"] == 1


@in_event_loop
async def test_without_parking_an_unfinished_group_begins_again_from_its_prompt(cluster: WorkerCluster) -> None:
    """B033: with partial rollouts off nothing of the first attempt is in the second."""
    await stopped(cluster, groups=GroupSettings(renew_every_s=15.0, park_every_s=None, parks_when_given_back=False))
    assert parked_of(cluster) is None
    (server,) = cluster.servers
    asked = len(server.questions())
    async with cluster.working(slots=GROUP, **LONG):
        (group,) = await cluster.lease(1)
    prompts = {tuple(t.rows[0].token_ids[: t.rows[0].num_prompt_tokens].tolist()) for t in group.trajectories}
    assert {tuple(body["input_ids"]) for body in server.questions()[asked : asked + GROUP]} == prompts


@in_event_loop
async def test_tokens_past_the_limit_are_not_gone_on_from(cluster: WorkerCluster) -> None:
    """B033: the retry starts with zero response tokens, and its only version is the one it is played with."""
    await stopped(cluster)
    cluster.buffer.advance(cluster.branch, 4, limit=0, groups_per_version=1)
    (server,) = cluster.servers
    cluster.version, server.label = pack(cluster.branch, 4), f"{cluster.branch}.4"
    async with cluster.working(slots=GROUP, **LONG) as (worker, _):
        (group,) = await cluster.lease(1, number=4)
    assert group.attempt == 2
    assert group.number_ranges() == {cluster.branch: (4, 4)}
    assert "partials_resumed" not in worker.facts()
    assert cluster.buffer.audit().by_reason["stale_partials"] == 1


@in_event_loop
async def test_a_run_that_is_stopped_parks_and_goes_on_from_there_when_it_is_resumed(cluster: WorkerCluster) -> None:
    (server,) = cluster.servers
    server.hold = True
    async with cluster.working(slots=GROUP, groups=GroupSettings(renew_every_s=0.02), **LONG) as (worker, _):
        await in_flight(server)
        cluster.buffer.stop()
        await cluster.counted(waiting=1)
        server.hold = False
        cluster.buffer.resume()
        (group,) = await cluster.lease(1)
        assert worker.facts()["partials_resumed"] == 1
    assert group.attempt == 2


@in_event_loop
async def test_a_worker_whose_servers_are_gone_parks_what_it_has(cluster: WorkerCluster) -> None:
    (server,) = cluster.servers
    server.script.extend(["abort"] * GROUP + [DROP] * 100)
    async with cluster.working(slots=GROUP, server_wait_s=0.1, **LONG) as (worker, stop):
        await until(lambda: "groups_given_up" in worker.facts())
        stop.set()
    facts = worker.facts()
    assert float(facts["partials_parked"]) >= 1
    assert cluster.buffer.counts()["waiting"] == 1
    partials = parked_of(cluster)
    assert partials is not None
    assert partials.num_sampled > 0


@in_event_loop
async def test_held_out_prompts_are_not_parked(cluster: WorkerCluster) -> None:
    (server,) = cluster.servers
    evaluation = cluster.buffer.open_evaluation(pack(cluster.branch, 0), num_prompts=1, group_size=1)
    server.hold = True
    async with cluster.working(slots=1, stop_timeout_s=0.01, **LONG):
        await in_flight(server, 1)
    claim = evaluation.reserve("reader")
    assert isinstance(claim, Claim)
    assert claim.parked is None
