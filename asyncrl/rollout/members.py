"""The episodes of one group while they are played: each in a slot, watched together, and brought to a halt together."""

import asyncio
import time
from collections import Counter
from contextlib import suppress

from asyncrl.data.policies import GREEDY_BASELINE
from asyncrl.rollout.builder import TrajectoryBuilder
from asyncrl.rollout.episode import EpisodeTask, PromptMemo
from asyncrl.rollout.pacing import Slots
from asyncrl.rollout.player import Player
from asyncrl.rollout.progress import Progress
from asyncrl.rollout.teachers import Teachers
from asyncrl.rollout.work import Work
from buffer import Trajectory

CUT_AGAIN_S = 0.25  # a request that was on its way to the server when it was cut is cut again so soon

Playing = asyncio.Task[Trajectory]


class Members:
    """The episodes of one claim, and behind them the greedy one whose reward is their baseline, if the work has one.

    `counts` gets episodes and rewards_failed.
    """

    def __init__(self, work: Work, player: Player, slots: Slots, counts: Counter[str], teachers: Teachers) -> None:
        self._work, self._player, self._slots, self._counts = work, player, slots, counts
        self._teachers = teachers
        self.older = asyncio.Event()
        """Set when the group's oldest version becomes known or older."""
        self.progress = [Progress(TrajectoryBuilder(on_older=self.older.set)) for _ in range(work.group_size)]
        if work.has_baseline:
            self.progress.append(Progress(TrajectoryBuilder(on_older=self.older.set), GREEDY_BASELINE))
        for member in self.progress:
            member.session.only = work.server
        self._playing: list[tuple[Progress, Playing]] = []

    @property
    def answers(self) -> list[Progress]:
        """The episodes that are to be trained on."""
        return [member for member in self.progress if not member.is_baseline]

    @property
    def oldest_version(self) -> int | None:
        """Smallest packed version that a token of the group was sampled under."""
        known = (member.builder.oldest_version for member in self.progress)
        return min((version for version in known if version is not None), default=None)

    @property
    def num_sampled(self) -> int:
        """Sampled tokens of the group, those taken over included."""
        return sum(member.num_sampled for member in self.progress)

    async def play(self) -> tuple[Trajectory, ...]:
        """The trajectories of all episodes. Raises what ended the first that failed."""
        memo = PromptMemo()
        self._playing = [
            (member, asyncio.create_task(self._episode(i, member, memo))) for i, member in enumerate(self.progress)
        ]
        tasks = [task for _, task in self._playing]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        return tuple(task.result() for task in tasks)

    async def halt(self, deadline_s: float) -> None:
        """Stop every episode where it is.

        What is in flight at a server is asked for as far as it is. A server that does not give it within `deadline_s`
        seconds loses it.
        """
        end_s = time.monotonic() + deadline_s
        for member in self.progress:
            member.is_halted = True
        for member, task in self._playing:
            if member.session.in_flight is None:
                task.cancel()  # nothing of it is elsewhere, and it can be looked at between any two steps
        pending = {task for _, task in self._playing if not task.done()}
        while pending and (left_s := end_s - time.monotonic()) > 0:
            at_servers = [m for m, task in self._playing if task in pending and m.session.in_flight is not None]
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await asyncio.gather(*(self._player.cut(member) for member in at_servers))
            _, pending = await asyncio.wait(pending, timeout=min(CUT_AGAIN_S, left_s))
        await self.end()

    async def end(self) -> None:
        """End what still runs; what it raises meanwhile belongs to a group that has its outcome already."""
        tasks = [task for _, task in self._playing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _episode(self, index: int, member: Progress, memo: PromptMemo) -> Trajectory:
        """The trajectory that is handed in. What is parked has no scores of teachers: the next owner asks again."""
        work, trajectory = self._work, member.trajectory
        if trajectory is None:  # else the last owner finished it
            trajectory = await self._played(index, member, memo)
        if work.stream != "train" or member.is_baseline:
            return trajectory
        # Outside of the slot, which goes to the next episode meanwhile.
        scored = await self._teachers.score(work.row.data_source, trajectory)
        self._counts["rewards_failed"] += scored.reward is None and trajectory.reward is not None
        return scored

    async def _played(self, index: int, member: Progress, memo: PromptMemo) -> Trajectory:
        work = self._work
        task = EpisodeTask(
            work.row,
            work.stream,
            work.claim.ordinal,
            index,
            work.may_start_on,
            with_text=work.stream == "eval",
            is_greedy=member.is_baseline,
        )
        async with self._slots.slot():
            trajectory = await self._player.play(task, member, memo)
        self._counts["episodes"] += 1
        self._counts["rewards_failed"] += trajectory.reward is None
        return trajectory
