"""A host and a real local server: weights arrive bit for bit, lives follow one another, devices are lent.

Each test starts servers, which takes seconds, so each follows one story to its end.
"""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from asyncrl.inference.client import ServerClient
from asyncrl.inference.errors import ServerUnavailable
from asyncrl.inference.fleet import Fleet, Generated, Session
from asyncrl.inference.protocol import Sampling, vocab_size
from asyncrl.inference.sharing import SharedGpus
from buffer.versions import pack
from tests.support.event_loop import in_event_loop
from tests.support.rollout_cluster import CONTEXT, RolloutCluster

PROMPT = [3, 4, 5, 6]
SAMPLING = Sampling(CONTEXT - len(PROMPT), temperature=1.0, top_p=1.0, top_k=-1, stop_token_ids=(), seed=7)


@pytest.fixture
def cluster(tmp_path: Path) -> RolloutCluster:
    return RolloutCluster(tmp_path)


async def ask(fleet: Fleet, version: int, *, seed: int = 7, server: str | None = None) -> Generated:
    """An answer from a server at `version` or later."""
    sampling = Sampling(CONTEXT - len(PROMPT), temperature=1.0, top_p=1.0, top_k=-1, stop_token_ids=(), seed=seed)
    return await fleet.generate(PROMPT, sampling, session=Session(server), may_start_on=lambda held: held >= version)


@in_event_loop
async def test_one_server_follows_the_trainer_through_updates_a_loan_of_its_device_and_a_resumed_branch(
    cluster: RolloutCluster,
) -> None:
    host = cluster.host(lent=True)
    async with cluster.running(host) as fleet:
        while not host.facts.counts.get("lives"):  # it may start first, and then waits for version 0
            await asyncio.to_thread(cluster.log.watch(("server",)).wait, 0.1)
        trainer = await asyncio.to_thread(cluster.trainer, 1)
        await cluster.serving(0)
        first = await ask(fleet, 0)
        assert {(span.version, span.digest) for span in first.spans} == {(0, cluster.log.digest_of(0))}

        asking = [asyncio.create_task(ask(fleet, 0, seed=seed)) for seed in range(40)]
        for _ in range(3):
            version = await asyncio.to_thread(trainer.step)
            await cluster.serving(version)
        for answer in await asyncio.gather(*asking):
            assert sum(span.num_tokens for span in answer.spans) == len(answer.token_ids) > 0
            assert all(span.digest == cluster.log.digest_of(span.version) for span in answer.spans)
        last = await ask(fleet, version)
        assert {span.version for span in last.spans} == {version}
        assert (last.token_ids, last.logprobs) != (first.token_ids, first.logprobs)
        assert host.facts.counts["activations"] == 3
        assert 0 < host.facts.counts["pause_s"] < 3

        gpus = SharedGpus(cluster.log, deadline_s=60.0)
        await gpus.recall()
        assert cluster.log.servers()["server-0"].state == "asleep"
        version = await asyncio.to_thread(trainer.step)
        await gpus.lend()
        await cluster.serving(version)
        assert host.facts.counts["sleeps"] == 1
        assert 0 < host.facts.counts["sleep_s"] < 3
        assert 0 < host.facts.counts["wake_s"] < 10
        assert {span.version for span in (await ask(fleet, version)).spans} == {version}

        resumed = await asyncio.to_thread(cluster.trainer, 2)
        version = await asyncio.to_thread(resumed.step)
        assert version == pack(2, 1), "its number goes back, its branch does not"
        await cluster.serving(version)
        assert {span.version for span in (await ask(fleet, version)).spans} == {version}
    assert "server-0" not in cluster.log.servers(), "a server that stops in order says so"
    assert not list((cluster.directory / "stage").iterdir()), "nothing of its weights is left behind"


@in_event_loop
async def test_two_servers_answer_alike_and_when_one_is_killed_the_other_takes_over(cluster: RolloutCluster) -> None:
    trainer = cluster.trainer()
    names = ("server-0", "server-1")
    async with cluster.running(*map(cluster.host, names)) as fleet:
        version = await asyncio.to_thread(trainer.step)
        for name in names:
            await cluster.serving(version, name)
        await fleet.refresh()  # what the log says may reach the fleet a moment later
        answers = [await ask(fleet, version, server=name) for name in names]
        assert [answer.server for answer in answers] == list(names)
        assert answers[0].token_ids == answers[1].token_ids
        assert answers[0].logprobs == answers[1].logprobs, "bit for bit"

        cluster.kill_server("server-0")
        again, session = answers[0], Session("server-0")
        while again.server == "server-0":
            with suppress(ServerUnavailable):  # its last word may outlive it by a moment
                again = await fleet.generate(PROMPT, SAMPLING, session=session, may_start_on=lambda held: True)
        assert (again.server, again.logprobs) == ("server-1", answers[1].logprobs)


class KilledWhileItLoads(ServerClient):
    """Kills its server once, with the update request sent and not answered."""

    cluster: RolloutCluster | None

    async def load_staged(self, loader: str, body: str, *, num_ranks: int, flush_cache: bool) -> None:
        cluster, type(self).cluster = type(self).cluster, None
        if cluster is not None:
            cluster.stop_server("server-0")
        loading = asyncio.create_task(super().load_staged(loader, body, num_ranks=num_ranks, flush_cache=flush_cache))
        if cluster is not None:
            await asyncio.wait([loading], timeout=0.05)
            cluster.kill_server("server-0")
        await loading


@in_event_loop
async def test_a_server_that_is_killed_in_the_middle_of_an_update_comes_back_at_head(
    cluster: RolloutCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B053: nothing is asked of its next life before that holds the fleet's version."""
    trainer = cluster.trainer()
    KilledWhileItLoads.cluster = None
    monkeypatch.setattr(
        cluster, "client", lambda url: KilledWhileItLoads(url, vocab_size=vocab_size(cluster.model_dir))
    )
    host = cluster.host()
    async with cluster.running(host) as fleet:
        first = await cluster.serving(await asyncio.to_thread(trainer.step))
        KilledWhileItLoads.cluster = cluster
        version = await asyncio.to_thread(trainer.step)
        answer = asyncio.create_task(ask(fleet, version))
        second = await cluster.serving(version)
        assert second != first
        assert {(span.version, span.digest) for span in (await answer).spans} == {
            (version, cluster.log.digest_of(version))
        }
        assert host.facts.counts["restarts"] == 1
