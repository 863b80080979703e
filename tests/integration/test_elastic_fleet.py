"""Real servers come, go and misbehave while episodes are played: each keeps every token, under the right version.

Starting servers takes seconds, so each test follows one story to its end.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from asyncrl import waits
from asyncrl.config import Config
from asyncrl.inference import member
from asyncrl.inference.errors import ServerUnavailable
from asyncrl.inference.host import HostSettings
from asyncrl.run.connections import URL
from asyncrl.run.handover import write_config
from tests.support.event_loop import in_event_loop
from tests.support.inference_servers import ROOT, environment
from tests.support.redis_server import running_redis
from tests.support.rollout_cluster import CONTEXT, RolloutCluster
from tests.support.waves import ROWS, Wave, check, serving
from tests.support.worker_process import worker_config
from weightsync.orders import Order

NUM_EPISODES = 20
BRISK = HostSettings(max_restarts=3, renew_every_s=0.2, probe_deadline_s=1.5, max_probe_failures=2)


async def until(condition: Callable[[], Any], why: Callable[[], object] = str) -> None:
    await waits.until("test", lambda: condition() or None, why=lambda: str(why()), deadline_s=60.0, recheck_s=0.02)


@in_event_loop
async def test_an_adopted_server_that_hangs_or_is_started_again_by_its_owner_is_out_until_it_holds_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "PROBE_S", 1.5)
    cluster = RolloutCluster(tmp_path)
    cluster.host_settings = BRISK
    trainer, name = cluster.trainer(), "adopted-0"
    owned = cluster.server(name, max_running_requests=ROWS)  # its owner is the test
    url, stage = owned.url(), cluster.stage_of(name)
    await owned.begin(url, stage, cluster.client(url))
    adopting = cluster.adopting_host(name, url)
    async with cluster.running(cluster.host("server-0", max_running_requests=ROWS), adopting) as fleet:
        version = await asyncio.to_thread(trainer.step)
        await serving(cluster, fleet, version, "server-0", name)
        wave = Wave(fleet, NUM_EPISODES)
        whole = await wave.play()
        check(cluster, whole)

        # It hangs with requests in flight: connections stay, nothing is answered.
        first = cluster.log.servers()[name].incarnation
        playing = asyncio.create_task(wave.play())
        await wave.on(name)
        cluster.stop_server(name)
        check(cluster, await playing, whole)
        assert wave.counts["answers_lost"] > 0
        assert name not in fleet.num_in_flight()
        version = await asyncio.to_thread(trainer.step)
        cluster.continue_server(name)
        await serving(cluster, fleet, version, "server-0", name)
        second = cluster.log.servers()[name].incarnation
        assert second != first

        # Its owner starts it again: it answers, with the weights that it began with.
        cluster.kill_server(name)
        await owned.ended()
        await owned.begin(url, stage, cluster.client(url))
        while await cluster.serving(version, name) == second:
            await asyncio.to_thread(cluster.log.watch(("server",)).wait, 0.1)
        await fleet.refresh()
        whole = await wave.play()
        check(cluster, whole)
        assert adopting.facts.counts["served_lives"] == 3
    info = cluster.client(url)
    assert (await info.model_info()).weight_version != "default", "it is not ours to stop"
    await info.close()
    await owned.end()


@contextmanager
def host_process(config: Config, redis_url: str, name: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The role server-host as a process for the block."""
    file = write_config(config, log.with_suffix(".json"))
    command = [sys.executable, "-m", "asyncrl.run", "server-host", "--config", str(file), "--name", name]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, env={**environment(), URL: redis_url}
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def state_of(cluster: RolloutCluster, name: str) -> str | None:
    server = cluster.log.servers().get(name)
    return None if server is None else server.state


@in_event_loop
async def test_a_server_joins_leaves_comes_back_and_is_lost_while_episodes_are_played(tmp_path: Path) -> None:
    with running_redis() as redis:
        cluster = RolloutCluster(tmp_path, redis.url, ack_lease_s=3.0)
        trainer, name = cluster.trainer(), "server-1"
        config = worker_config(
            tmp_path,
            "run",
            cluster.model_dir,
            inference={"context_length": CONTEXT, "max_running_requests": ROWS},
            weightsync={"stage_dir": str(tmp_path / "stage"), "ack_lease_s": 3.0},
            rollout={"max_new_tokens": CONTEXT // 2},
        )
        async with cluster.running(cluster.host("server-0", max_running_requests=ROWS)) as fleet:
            version = await asyncio.to_thread(trainer.step)
            await serving(cluster, fleet, version, "server-0")
            wave = Wave(fleet, NUM_EPISODES)
            whole = await wave.play()
            check(cluster, whole)

            # It joins amid answers, and nobody is told but through the log.
            playing = asyncio.create_task(wave.play())
            with host_process(config, redis.url, name, tmp_path / "host.log") as process:
                check(cluster, await playing, whole)
                await serving(cluster, fleet, version, "server-0", name)
                url = cluster.log.servers()[name].url

                # It leaves with its requests cut, and they go on elsewhere: nothing is lost, nothing drawn anew.
                playing = asyncio.create_task(wave.play())
                await wave.on(name)
                cluster.log.put_order(name, Order("leave", 0.0, "first"))
                check(cluster, await playing, whole)
                await until(lambda: state_of(cluster, name) == "drained", cluster.log.roster)
                assert wave.counts["answers_cut"] > 0
                assert wave.counts["answers_lost"] == 0
                assert name not in fleet.num_in_flight()

                # It comes back to head.
                cluster.log.put_order(name, None)
                version = await asyncio.to_thread(trainer.step)
                await serving(cluster, fleet, version, "server-0", name)
                whole = await wave.play()
                check(cluster, whole)

                # Its host is killed amid answers, and the server ends with it.
                playing = asyncio.create_task(wave.play())
                await wave.on(name)
                os.kill(process.pid, signal.SIGKILL)
                check(cluster, await playing, whole)
                assert wave.counts["answers_lost"] > 0
            await until(lambda: state_of(cluster, name) is None, cluster.log.servers)
            assert not cluster.log.roster()[name].alive, "it is shown as lost"
            gone = cluster.client(url)
            with pytest.raises(ServerUnavailable):
                await gone.model_info()
            await gone.close()
