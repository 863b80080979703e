"""A host and a real local server: weights arrive bit for bit, lives follow one another, devices are lent."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from asyncrl.inference.fleet import Session
from asyncrl.inference.protocol import Sampling
from asyncrl.inference.sharing import SharedGpus
from buffer.versions import pack
from tests.support.event_loop import in_event_loop
from tests.support.rollout_cluster import CONTEXT, RolloutCluster

PROMPT = [3, 4, 5, 6]
CONTEXT_LEFT = CONTEXT - len(PROMPT)


@pytest.fixture
def cluster(tmp_path: Path) -> RolloutCluster:
    return RolloutCluster(tmp_path)


def sampling(max_new_tokens: int = 8, seed: int = 7) -> Sampling:
    return Sampling(max_new_tokens, temperature=1.0, top_p=1.0, top_k=-1, stop_token_ids=(), seed=seed)


@in_event_loop
async def test_versions_reach_the_server_bit_for_bit_and_requests_in_flight_go_on_across_them(
    cluster: RolloutCluster,
) -> None:
    trainer = cluster.trainer()
    async with cluster.running(cluster.host()) as fleet:
        await cluster.serving(0)
        first = await fleet.generate(PROMPT, sampling(), session=Session(), may_start_on=lambda version: True)
        assert {(span.version, span.digest) for span in first.spans} == {(0, cluster.log.digest_of(0))}
        asking = [
            asyncio.create_task(
                fleet.generate(
                    PROMPT, sampling(CONTEXT_LEFT, seed), session=Session(), may_start_on=lambda version: True
                )
            )
            for seed in range(40)
        ]
        for _ in range(3):
            version = await asyncio.to_thread(trainer.step)
            await cluster.serving(version)
        answers = await asyncio.gather(*asking)
        for answer in answers:
            assert sum(span.num_tokens for span in answer.spans) == len(answer.token_ids) > 0
            assert all(span.digest == cluster.log.digest_of(span.version) for span in answer.spans)
        last = await fleet.generate(PROMPT, sampling(), session=Session(), may_start_on=lambda v: v >= version)
        assert {span.version for span in last.spans} == {version}
        assert last.token_ids != first.token_ids or last.logprobs != first.logprobs
    report = cluster.reports["server-0"]
    assert report["activations"] == 3
    assert 0 < float(report["pause_s"]) < 3


@in_event_loop
async def test_a_killed_server_comes_back_under_another_incarnation_and_at_head(cluster: RolloutCluster) -> None:
    trainer = cluster.trainer()
    async with cluster.running(cluster.host()) as fleet:
        version = await asyncio.to_thread(trainer.step)
        before = await cluster.serving(version)
        answer = await fleet.generate(PROMPT, sampling(), session=Session(), may_start_on=lambda v: v >= version)
        process = cluster.servers["server-0"]._process
        assert process is not None
        assert process.pid is not None
        os.killpg(process.pid, signal.SIGKILL)
        await asyncio.to_thread(trainer.step)
        newest = pack(1, 2)
        after = await cluster.serving(newest)
        assert after != before
        again = await fleet.generate(PROMPT, sampling(), session=Session(), may_start_on=lambda v: v >= newest)
        assert {span.version for span in again.spans} == {newest}
        assert answer.token_ids
    assert cluster.reports["server-0"]["restarts"] == 1


@in_event_loop
async def test_two_servers_at_one_version_give_the_same_tokens_and_logprobs(cluster: RolloutCluster) -> None:
    trainer = cluster.trainer()
    async with cluster.running(cluster.host("server-0"), cluster.host("server-1")) as fleet:
        version = await asyncio.to_thread(trainer.step)
        for name in ("server-0", "server-1"):
            await cluster.serving(version, name)
        answers = [
            await fleet.generate(PROMPT, sampling(), session=Session(name), may_start_on=lambda v: v >= version)
            for name in ("server-0", "server-1")
        ]
        assert {answer.server for answer in answers} == {"server-0", "server-1"}
        assert answers[0].token_ids == answers[1].token_ids
        assert answers[0].logprobs == answers[1].logprobs


@in_event_loop
async def test_a_new_trainer_whose_branch_goes_back_is_followed(cluster: RolloutCluster) -> None:
    first = cluster.trainer(branch=1)
    async with cluster.running(cluster.host()) as fleet:
        for _ in range(2):
            version = await asyncio.to_thread(first.step)
        await cluster.serving(version)
        second = await asyncio.to_thread(cluster.trainer, 2)
        version = await asyncio.to_thread(second.step)
        await cluster.serving(version)
        answer = await fleet.generate(PROMPT, sampling(), session=Session(), may_start_on=lambda v: v == version)
        assert [span.version for span in answer.spans] == [pack(2, 1)]


@in_event_loop
async def test_devices_are_lent_to_the_trainer_and_the_server_comes_back_checked(cluster: RolloutCluster) -> None:
    trainer = cluster.trainer()
    gpus = SharedGpus(cluster.log, deadline_s=60.0)
    async with cluster.running(cluster.host()) as fleet:
        await cluster.serving(0)
        async with gpus.for_training():
            assert cluster.log.servers()["server-0"].state == "asleep"
            version = await asyncio.to_thread(trainer.step)
        await cluster.serving(version)
        answer = await fleet.generate(PROMPT, sampling(), session=Session(), may_start_on=lambda v: v == version)
        assert {span.version for span in answer.spans} == {version}


@in_event_loop
async def test_a_host_that_starts_before_the_trainer_waits_for_version_0(cluster: RolloutCluster) -> None:
    async with cluster.running(cluster.host()):
        while "server-0" not in cluster.reports or not cluster.reports["server-0"].get("lives"):
            await asyncio.to_thread(cluster.log.watch(("server",)).wait, 0.1)
        await asyncio.to_thread(cluster.trainer)
        await cluster.serving(0)
