"""Waves of episodes at real servers, the same ones each time, so that two waves can be compared token by token."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import numpy as np

from asyncrl import waits
from asyncrl.data.rows import PromptRow
from asyncrl.envs.base import Reward
from asyncrl.inference.fleet import Fleet
from asyncrl.rollout.progress import Progress
from asyncrl.rollout.turns import EpisodeTask, TurnSampler
from buffer import Trajectory
from tests.support.episode_settings import episode_settings
from tests.support.rollout_cluster import CONTEXT, RolloutCluster

ROW = PromptRow(0, "toy", ({"role": "user", "content": "x"},), "x", {})
PROMPT = [3, 4, 5, 6]
NUM_EPISODES = 48
ROWS = 2  # of a server: few, so that a wave takes long enough to be met in the middle


class Wave:
    """Episodes that are sampled at once, the same ones each time."""

    def __init__(self, fleet: Fleet, num_episodes: int = NUM_EPISODES) -> None:
        self.fleet, self.counts, self._num_episodes = fleet, Counter[str](), num_episodes
        settings = episode_settings(max_new_tokens=CONTEXT, max_attempts=8)
        self._sampler = TurnSampler(fleet, settings, (), self.counts)

    async def play(self) -> list[Trajectory]:
        """All episodes to their ends."""
        return list(await asyncio.gather(*(self._episode(number) for number in range(self._num_episodes))))

    async def on(self, server: str) -> None:
        """Return when some of them are on this server."""
        busy = lambda: self.fleet.num_in_flight().get(server, 0) > 4 or None  # noqa: E731  # of this wait alone
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
