"""Two real servers, of which one is pinned: it answers in one version while the other follows the trainer."""

import asyncio
from pathlib import Path

from asyncrl.inference.fleet import Fleet, Generated, Session
from asyncrl.inference.protocol import Sampling
from buffer.versions import pack
from tests.support.event_loop import in_event_loop
from tests.support.rollout_cluster import CONTEXT, RolloutCluster
from weightsync.log.base import Pin

PROMPT = [3, 4, 5, 6]
KEPT, OTHER = "server-1", "server-0"


async def ask(fleet: Fleet, version: int, seed: int) -> Generated:
    """An answer of the kept server at exactly that version."""
    sampling = Sampling(CONTEXT - len(PROMPT), temperature=1.0, top_p=1.0, top_k=-1, stop_token_ids=(), seed=seed)
    return await fleet.generate(PROMPT, sampling, session=Session(only=KEPT), may_start_on=lambda held: held == version)


@in_event_loop
async def test_a_pinned_server_stays_at_its_version_through_publishes_prunings_and_its_own_death(
    tmp_path: Path,
) -> None:
    """Then it goes on to head."""
    cluster = RolloutCluster(tmp_path, keep_deltas=1, anchor_interval=2)
    trainer = cluster.trainer()
    version = pack(1, 2)
    async with cluster.running(cluster.host(OTHER), cluster.host(KEPT)) as fleet:
        await asyncio.to_thread(trainer.step)
        cluster.log.put_pin(1, Pin(KEPT, version))
        assert await asyncio.to_thread(trainer.step) == version
        first = await cluster.serving(version, KEPT)
        asking = [asyncio.create_task(ask(fleet, version, seed)) for seed in range(20)]
        for _ in range(4):
            head = await asyncio.to_thread(trainer.step)
            await asyncio.to_thread(trainer.publisher.prune)
            await cluster.serving(head, OTHER)
        answers = await asyncio.gather(*asking)
        assert {span.version for answer in answers for span in answer.spans} == {version}
        assert {answer.server for answer in answers} == {KEPT}
        assert cluster.log.acks()[KEPT].version == version

        cluster.kill_server(KEPT)
        second = await cluster.serving(version, KEPT)
        while second == first:  # its host has not noticed yet
            await asyncio.to_thread(cluster.log.watch(("server",)).wait, 0.1)
            second = await cluster.serving(version, KEPT)
        again = await ask(fleet, version, 0)
        assert again.token_ids == answers[0].token_ids, "the same weights"

        cluster.log.put_pin(1, None)
        await cluster.serving(head, KEPT)
