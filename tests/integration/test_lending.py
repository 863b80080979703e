"""A server of its own and a lent one, both real: answers cross its sleep, its death and its end, and keep every token.

Starting servers takes seconds, so one story is followed to its end.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from asyncrl import waits
from asyncrl.inference.client import ServerClient
from asyncrl.inference.sharing import SharedGpus
from buffer import Trajectory
from tests.support.event_loop import in_event_loop
from tests.support.redis_server import running_redis
from tests.support.rollout_cluster import RolloutCluster
from tests.support.waves import ROWS, Wave, check, serving


async def met_on_the_lent(cluster: RolloutCluster, wave: Wave) -> "asyncio.Task[list[Trajectory]]":
    """A wave in the middle of its answers at the lent server, which has read them and does nothing more: else it would
    give all its answers before its host is asked for anything."""
    for _ in range(10):
        playing = asyncio.create_task(wave.play())
        await wave.on("lent-0")
        cluster.stop_server("lent-0")
        await waits.pause("test", 0.02)  # what it said before is taken in
        if wave.fleet.num_in_flight().get("lent-0", 0) > ROWS:
            return playing
        cluster.continue_server("lent-0")
        await playing
    raise AssertionError("ten waves had ended before they were met in the middle")


def continued_at_the_abort(cluster: RolloutCluster) -> Callable[[ServerClient], Awaitable[None]]:
    """`abort_all` that has the stopped server hear it, and do nothing before it can."""
    abort_all, url = ServerClient.abort_all, cluster.log.servers()["lent-0"].url

    async def heard(client: ServerClient) -> None:
        if client.url == url:
            cluster.continue_server("lent-0")
        await abort_all(client)

    return heard


async def until(condition: Callable[[], bool]) -> None:
    await waits.until("test", lambda: condition() or None, why=lambda: "", deadline_s=60.0, recheck_s=0.005)


@in_event_loop
async def test_answers_outlive_a_recall_a_death_and_the_end_of_a_lent_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_redis() as redis:
        cluster = RolloutCluster(tmp_path, redis.url)
        trainer, gpus, end = cluster.trainer(), SharedGpus(cluster.log, deadline_s=60.0), asyncio.Event()
        host = cluster.host("lent-0", lent=True, max_running_requests=ROWS)
        async with cluster.running(cluster.host("server-0", max_running_requests=ROWS)) as fleet:
            looked_after = asyncio.create_task(host.run(end))
            version = await asyncio.to_thread(trainer.step)
            await serving(cluster, fleet, version, "server-0", "lent-0")
            wave = Wave(fleet)
            whole = await wave.play()
            check(cluster, whole)

            # Taken back in the middle of its answers: they go on elsewhere and say what they would have said.
            playing = await met_on_the_lent(cluster, wave)
            recall = asyncio.create_task(gpus.recall())
            await until(lambda: cluster.log.servers()["lent-0"].state == "updating")
            cluster.continue_server("lent-0")
            await recall
            assert cluster.log.servers()["lent-0"].state == "asleep"
            assert cluster.log.servers()["server-0"].state == "serving", "its device is nobody else's"
            check(cluster, await playing, whole)
            assert wave.counts["answers_cut"] > 0
            assert wave.counts["answers_lost"] == 0
            await until(lambda: host.facts.counts.get("sleeps") == 1)

            # A version is published while it sleeps: it serves head, or nothing.
            version = await asyncio.to_thread(trainer.step)
            await serving(cluster, fleet, version, "server-0")
            assert cluster.log.servers()["lent-0"].state == "asleep", "another server's news does not wake it"
            await gpus.lend()
            assert await asyncio.to_thread(gpus.await_serving, 60.0)
            assert cluster.log.acks()["lent-0"].version == version
            await serving(cluster, fleet, version, "lent-0")

            # Killed in the middle of its answers, and taken back before it is there again.
            whole = await wave.play()
            playing = await met_on_the_lent(cluster, wave)
            cluster.kill_server("lent-0")
            check(cluster, await playing, whole)
            assert wave.counts["answers_lost"] > 0
            await gpus.recall()
            assert cluster.log.servers()["lent-0"].state == "asleep"
            assert host.facts.counts["lives"] == 2
            await gpus.lend()
            await serving(cluster, fleet, version, "lent-0")

            # The trainer's side stops while it is lent: what is in flight is answered as far as it is.
            cut, lost = wave.counts["answers_cut"], wave.counts["answers_lost"]
            playing = await met_on_the_lent(cluster, wave)
            monkeypatch.setattr(ServerClient, "abort_all", continued_at_the_abort(cluster))
            end.set()
            check(cluster, await playing, whole)
            await looked_after
            assert wave.counts["answers_cut"] > cut
            assert wave.counts["answers_lost"] == lost
            assert gpus.num_servers() == (0, 1)
