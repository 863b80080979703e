"""A server of its own and a lent one, both real: answers cross its sleep, its death and its end, and keep every token.

Starting servers takes seconds, so one story is followed to its end.
"""

import asyncio
from pathlib import Path

from asyncrl.inference.sharing import SharedGpus
from tests.support.event_loop import in_event_loop
from tests.support.rollout_cluster import RolloutCluster
from tests.support.waves import ROWS, Wave, check, serving


@in_event_loop
async def test_answers_outlive_a_recall_a_death_and_the_end_of_a_lent_server(tmp_path: Path) -> None:
    cluster = RolloutCluster(tmp_path)
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
        playing = asyncio.create_task(wave.play())
        await wave.on("lent-0")
        await gpus.recall()
        assert cluster.log.servers()["lent-0"].state == "asleep"
        assert cluster.log.servers()["server-0"].state == "serving", "its device is nobody else's"
        check(cluster, await playing, whole)
        assert wave.counts["answers_lost"] == 0
        assert host.facts.counts["sleeps"] == 1

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
        playing = asyncio.create_task(wave.play())
        await wave.on("lent-0")
        cluster.kill_server("lent-0")
        check(cluster, await playing, whole)
        await gpus.recall()
        assert cluster.log.servers()["lent-0"].state == "asleep"
        assert host.facts.counts["lives"] == 2
        await gpus.lend()
        await serving(cluster, fleet, version, "lent-0")

        # The trainer's side stops while it is lent: what is in flight is answered as far as it is.
        cut, lost = wave.counts["answers_cut"], wave.counts["answers_lost"]
        playing = asyncio.create_task(wave.play())
        await wave.on("lent-0")
        end.set()
        check(cluster, await playing, whole)
        await looked_after
        assert wave.counts["answers_cut"] >= cut  # a fast server may have ended what was running
        assert wave.counts["answers_lost"] == lost
        assert gpus.num_servers() == (0, 1)
