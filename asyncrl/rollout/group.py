"""Play the episodes of one claim, keep the claim alive meanwhile, and hand the whole group in or give it back.

A group leaves in exactly one of three ways: put as a whole, failed with a reason (a failure is counted), or abandoned
(it costs nothing). A worker that dies in between loses the claim to the next one.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass

from asyncrl import waits
from asyncrl.data.rows import PromptRow
from asyncrl.errors import WaitTimeout
from asyncrl.rollout.builder import TrajectoryBuilder
from asyncrl.rollout.episode import EpisodeFailed, EpisodePlayer, EpisodeTask, PromptMemo
from asyncrl.rollout.pacing import Slots
from asyncrl.rollout.seeds import Stream
from buffer import Fenced, Group, ReplayBuffer, Trajectory
from buffer.answers import Claim

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Work:
    """A claim with its prompt. `ledger` is the run's, or that of the evaluation that the claim is of."""

    ledger: ReplayBuffer
    claim: Claim
    row: PromptRow
    stream: Stream
    group_size: int


class GroupPlayer:
    """Plays groups; the episodes of all of them share the slots. `counts` has what became of them, by name."""

    def __init__(self, player: EpisodePlayer, slots: Slots, *, renew_every_s: float) -> None:
        self._player, self._slots, self._renew_every_s = player, slots, renew_every_s
        self.counts: Counter[str] = Counter()

    async def play(self, work: Work) -> str:
        """Play one group to its end. Whoever cancels it gives the claim back (Reservations.close).

        Returns:
            What became of it: ready, stale, dead, waiting (it failed), fenced, given_up, or why it was not finished.
        """
        claim, ledger = work.claim, work.ledger
        older = asyncio.Event()
        builders = [TrajectoryBuilder(on_older=older.set) for _ in range(work.group_size)]
        memo = PromptMemo()
        episodes = [asyncio.create_task(self._episode(work, i, builder, memo)) for i, builder in enumerate(builders)]
        try:
            outcome = await self._to_the_end(work, episodes, self._keep(work, builders, older))
        except Fenced as error:
            log.warning("group %s is dropped: %s", claim.gid, error)
            outcome = "fenced"
        except EpisodeFailed as error:
            log.warning("group %s failed: %s", claim.gid, error)
            self.counts[f"failed_{error.reason}"] += 1
            outcome = await self._fail(work, error)
        except WaitTimeout as error:
            log.warning("group %s is given back, which costs its prompt nothing: %s", claim.gid, error)
            await waits.in_thread(ledger.abandon, claim)
            outcome = "given_up"
        except Exception as error:
            # A fault of ours: the claim must not wait for its deadline, and the worker must not go on.
            with suppress(Fenced):
                await waits.in_thread(ledger.fail, claim, "worker_error", f"{type(error).__name__}: {error}")
            raise
        finally:
            await _cancel(episodes)
        self.counts[f"groups_{outcome}"] += 1
        return outcome

    async def _episode(self, work: Work, index: int, builder: TrajectoryBuilder, memo: PromptMemo) -> Trajectory:
        task = EpisodeTask(
            work.row,
            work.stream,
            work.claim.ordinal,
            index,
            work.claim.may_start_on,
            with_text=work.stream == "eval",
        )
        async with self._slots.slot():
            trajectory = await self._player.play(task, builder, memo)
        self.counts["episodes"] += 1
        self.counts["sampled_tokens"] += trajectory.num_sampled
        self.counts["rewards_failed"] += trajectory.reward is None
        return trajectory

    async def _to_the_end(
        self, work: Work, episodes: list[asyncio.Task[Trajectory]], keeping: Coroutine[None, None, str]
    ) -> str:
        keeper, playing = asyncio.create_task(keeping), asyncio.create_task(_all_of(episodes))
        try:
            await asyncio.wait((keeper, playing), return_when=asyncio.FIRST_COMPLETED)
            if not playing.done():
                log.info("group %s is not finished: %s", work.claim.gid, keeper.result())
                await waits.in_thread(work.ledger.abandon, work.claim)
                return keeper.result()
            trajectories = playing.result()  # raises what ended an episode
        finally:
            keeper.cancel()
            playing.cancel()
            await asyncio.gather(keeper, playing, return_exceptions=True)
        group = Group(
            ordinal=work.claim.ordinal,
            attempt=work.claim.attempt,
            data_source=work.row.data_source,
            trajectories=trajectories,
            extra_info={"index": work.row.index},
        )
        return await waits.in_thread(work.ledger.put, work.claim, group)

    async def _keep(self, work: Work, builders: list[TrajectoryBuilder], older: asyncio.Event) -> str:
        """Renew the claim until cancelled; the reason, when the group is not to be finished.

        At once when the group's oldest version is known: a lease waits only for groups whose age it knows.
        """
        told: int | None = None
        while True:
            # Not wait_for: in Python 3.11 it swallows a cancellation that comes together with the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._renew_every_s):
                    while _oldest(builders) == told:
                        older.clear()
                        await older.wait()
            told = _oldest(builders)
            answer = await waits.in_thread(work.ledger.renew, work.claim, told)
            if not answer.go_on:
                return answer.reason

    async def _fail(self, work: Work, error: EpisodeFailed) -> str:
        try:
            return await waits.in_thread(work.ledger.fail, work.claim, error.reason, error.message)
        except Fenced:
            return "fenced"


async def _all_of(episodes: list[asyncio.Task[Trajectory]]) -> tuple[Trajectory, ...]:
    """The trajectories of all episodes, or what ended the first that failed."""
    done, _ = await asyncio.wait(episodes, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()
    return tuple(task.result() for task in episodes)


def _oldest(builders: list[TrajectoryBuilder]) -> int | None:
    return min((b.oldest_version for b in builders if b.oldest_version is not None), default=None)


async def _cancel(tasks: list[asyncio.Task[Trajectory]]) -> None:
    """End what still runs; what it raises meanwhile belongs to a group that has its outcome already."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
