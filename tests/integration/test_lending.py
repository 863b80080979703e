"""A server of its own and a lent one, both real: answers cross its sleep, its death and its end, and keep every token.

Starting servers takes seconds, so one story is followed to its end.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from asyncrl import waits
from asyncrl.data.rows import PromptRow
from asyncrl.envs.base import Reward
from asyncrl.inference.fleet import Fleet
from asyncrl.inference.sharing import SharedGpus
from asyncrl.rollout.progress import Progress
from asyncrl.rollout.turns import EpisodeTask, TurnSampler
from buffer import Trajectory
from tests.support.episode_settings import episode_settings
from tests.support.event_loop import in_event_loop
from tests.support.rollout_cluster import CONTEXT, RolloutCluster

ROW = PromptRow(0, "toy", ({"role": "user", "content": "x"},), "x", {})
PROMPT = [3, 4, 5, 6]
NUM_EPISODES = 48  # of which half are on the lent server
ROWS = 2  # few, so that a wave takes long enough to be met in the middle


class Wave:
    """Episodes that are sampled at once, the same ones each time."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.counts = fleet, Counter[str]()
        settings = episode_settings(max_new_tokens=CONTEXT, max_attempts=8)
        self._sampler = TurnSampler(fleet, settings, (), self.counts)

    async def play(self) -> list[Trajectory]:
        """All episodes to their ends."""
        return list(await asyncio.gather(*(self._episode(number) for number in range(NUM_EPISODES))))

    async def on_lent(self) -> None:
        """Return when some of them are on the lent server."""
        busy = lambda: self.fleet.num_in_flight().get("lent-0", 0) > 4 or None  # noqa: E731  # of this wait alone
        await waits.until("test", busy, why=lambda: self.fleet.why(), deadline_s=60.0, recheck_s=0.005)
        await waits.pause("test", 0.02)  # some tokens

    async def _episode(self, number: int) -> Trajectory:
        progress = Progress()
        progress.builder.begin_row(PROMPT)
        progress.next_turn(None)
        task = EpisodeTask(ROW, "train", number, 0, lambda version: True)
        ended = await self._sampler.sample(task, progress)
        return progress.finish(Reward(1.0), finish_reason=ended, num_turns=1, extra_info={})


def check(cluster: RolloutCluster, found: Sequence[Trajectory], whole: Sequence[Trajectory] | None = None) -> None:
    """Every token is there, once, under a version that was published with those bits; as in `whole`, where given."""
    for trajectory in found:
        (row,) = trajectory.rows
        assert sum(span.num_tokens for span in row.spans) == row.num_sampled == len(row.token_ids) - len(PROMPT) > 0
        assert all(span.digest == cluster.log.digest_of(span.version) for span in row.spans)
    if whole is not None:
        for one, other in zip(found, whole, strict=True):
            np.testing.assert_array_equal(one.rows[0].token_ids, other.rows[0].token_ids)


async def serving(cluster: RolloutCluster, fleet: Fleet, version: int, *names: str) -> None:
    """The servers serve this version, and the fleet knows."""
    for name in names:
        await cluster.serving(version, name)
    await fleet.refresh()


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
        await wave.on_lent()
        await gpus.recall()
        assert cluster.log.servers()["lent-0"].state == "asleep"
        assert cluster.log.servers()["server-0"].state == "serving", "its device is nobody else's"
        check(cluster, await playing, whole)
        assert wave.counts["answers_cut"] > 0
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
        await wave.on_lent()
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
        playing = asyncio.create_task(wave.play())
        await wave.on_lent()
        end.set()
        check(cluster, await playing, whole)
        await looked_after
        assert wave.counts["answers_cut"] > cut
        assert wave.counts["answers_lost"] == lost
        assert gpus.num_servers() == (0, 1)
