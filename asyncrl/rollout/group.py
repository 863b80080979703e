"""Play the episodes of one claim, keep the claim alive meanwhile, and hand the whole group in or give it back.

A group leaves in exactly one of three ways: put as a whole (or filtered, if it can teach nothing), failed with a reason
(a failure is counted), or abandoned (it costs nothing). What an abandoned one has is parked before, so that the
ordinal's next owner goes on from it. A worker that dies in between loses the claim to the next one, with what it
parked last.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from asyncrl import waits
from asyncrl.config.dynamic_sampling import ZERO_VARIANCE
from asyncrl.errors import WaitTimeout
from asyncrl.rollout.episode import EpisodeFailed
from asyncrl.rollout.lengths import EndedLengths
from asyncrl.rollout.members import Members
from asyncrl.rollout.pacing import Slots
from asyncrl.rollout.parking import Parking
from asyncrl.rollout.player import Player
from asyncrl.rollout.signal import shared_reward
from asyncrl.rollout.teachers import Teachers
from asyncrl.rollout.work import Work
from buffer import Fenced, Group, Trajectory

log = logging.getLogger(__name__)

TELL_AFTER_S = 0.05
"""Within it groups of short answers are in, which saves a renewal each; to longer ones it is nothing."""
TELLING = "worker tells how old its group is"
MAX_SHARED_REWARDS = 16
"""Rewards that equal members share which are counted one by one."""
DOOMED = "doomed"  # the ledger's reason for a group that can no longer be consumed in time


@dataclass(frozen=True)
class GroupSettings:
    """How claims are kept, and when groups are parked.

    Attributes:
        renew_every_s: seconds between two renewals of a claim.
        park_every_s: seconds between two looks whether there is something new to park; None: never.
        parks_when_given_back: whether a group that is not to be finished is parked.
        cut_timeout_s: seconds that servers get to give back what they have of a group that is halted.
        filters_zero_variance: whether a group whose rewards are all equal is not handed in; its place is given back, so
            that another prompt is played.
        pass_reward: smallest reward that counts as passed, where prompts are drawn by results.
        tell_after_s: seconds until the ledger is told how old a group is, from when that is known or changes.
    """

    renew_every_s: float
    park_every_s: float | None = None
    parks_when_given_back: bool = True
    cut_timeout_s: float = 5.0
    filters_zero_variance: bool = False
    pass_reward: float | None = None
    tell_after_s: float = TELL_AFTER_S


class GroupPlayer:
    """Plays groups; the episodes of all of them share the slots. `counts` has what became of them, by name, and
    `lengths` those of their answers that came to no batch."""

    def __init__(self, player: Player, slots: Slots, settings: GroupSettings, teachers: Teachers | None = None) -> None:
        self._player, self._slots, self._settings = player, slots, settings
        self._teachers = teachers or Teachers(())
        self._halted = asyncio.Event()
        self.counts: Counter[str] = Counter()
        self.lengths = EndedLengths()

    def halt(self) -> None:
        """Have every group that is not complete stopped where it is, parked and given back."""
        self._halted.set()

    async def play(self, work: Work) -> str:
        """Play one group to its end. Whoever cancels it gives the claim back (Reservations.close).

        Returns:
            What became of it: ready, filtered, stale, dead, waiting (it failed), fenced, given_up, or why it was not
            finished.
        """
        members = Members(work, self._player, self._slots, self.counts, self._teachers)
        parking = Parking(work.ledger, work.claim, work.row.data_source, members.progress, self.counts)
        try:
            outcome = await self._to_the_end(work, members, parking)
        except Fenced as error:
            log.warning("group %s is dropped: %s", work.claim.gid, error)
            outcome = "fenced"
        except EpisodeFailed as error:
            log.warning("group %s failed: %s", work.claim.gid, error)
            self.counts[f"failed_{error.reason}"] += 1
            outcome = await self._fail(work, parking, error.reason, error.message)
        except asyncio.CancelledError:
            work.remains.unparked = parking.unparked()
            raise
        except Exception as error:
            # A fault of ours: the claim must not wait for its deadline, and the worker must not go on.
            await self._fail(work, parking, "worker_error", f"{type(error).__name__}: {error}")
            raise
        finally:
            await members.end()
        self.counts[f"groups_{outcome}"] += 1
        if work.stream == "train":
            self.lengths.note(outcome, work.row.data_source, members.answers, is_parked=parking.is_kept)
        return outcome

    async def _to_the_end(self, work: Work, members: Members, parking: Parking) -> str:
        over = asyncio.Event()
        keeper = asyncio.create_task(self._keep(work, members))
        parker = asyncio.create_task(self._park_often(work, parking, over))
        playing = asyncio.create_task(self._play(members, parking))
        halting = asyncio.create_task(self._halted.wait())
        tasks = (keeper, parker, playing, halting)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            reason = _why_not(playing, keeper, parker)
            # A park that is under way ends first: after the put it would find the claim gone.
            over.set()
            await parker
            if reason:
                log.info("group %s is not finished: %s", work.claim.gid, reason)
                await self._stop(work, members, parking, reason)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if not reason:
            return await self._put(work, playing.result())
        await waits.in_thread(
            work.ledger.abandon, work.claim, sampled=parking.unparked(), data_source=work.row.data_source
        )
        return reason

    async def _play(self, members: Members, parking: Parking) -> tuple[Trajectory, ...]:
        await parking.resume()
        return await members.play()

    async def _stop(self, work: Work, members: Members, parking: Parking, reason: str) -> None:
        """Stop the group where it is, and park it if somebody may go on from there."""
        if reason == DOOMED:
            await members.halt(self._settings.cut_timeout_s)  # so that what is wasted is known
            await parking.forget()  # else it would be doomed again in the next hands
        elif self._settings.parks_when_given_back and work.stream == "train":
            await members.halt(self._settings.cut_timeout_s)
            if parking.is_behind:
                await parking.park()
        else:
            await members.end()

    async def _keep(self, work: Work, members: Members) -> str:
        """Renew the claim until cancelled; the reason, when the group is not to be finished.

        Soon, too, when the group's oldest version is known: a lease waits only for groups whose age it knows.
        """
        told: int | None = None
        while True:
            # Not wait_for: in Python 3.11 it swallows a cancellation that comes together with the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.renew_every_s):
                    while members.oldest_version == told:
                        members.older.clear()
                        await members.older.wait()
                    await waits.pause(TELLING, self._settings.tell_after_s)
            told = members.oldest_version
            answer = await waits.in_thread(work.ledger.renew, work.claim, told, members.num_sampled)
            if not answer.go_on:
                return answer.reason

    async def _park_often(self, work: Work, parking: Parking, over: asyncio.Event) -> None:
        """Park what is new, again and again until `over`. Held-out prompts are short work: they start again."""
        every_s = self._settings.park_every_s if work.stream == "train" else None
        while not over.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await over.wait()
            if not over.is_set() and parking.is_behind:
                await parking.park()

    async def _put(self, work: Work, trajectories: tuple[Trajectory, ...]) -> str:
        group = Group(
            ordinal=work.claim.ordinal,
            attempt=work.claim.attempt,
            data_source=work.row.data_source,
            trajectories=trajectories,
            extra_info={"index": work.row.index, **_drawn(work)},
        )
        filtered = self._why_filtered(work, trajectories)
        put = partial(work.ledger.put, work.claim, group, filtered=filtered, pass_reward=self._settings.pass_reward)
        putting = asyncio.ensure_future(waits.in_thread(put))
        work.remains.is_handed_in = True
        try:
            return await asyncio.shield(putting)
        except asyncio.CancelledError:
            # The call cannot be taken back; to give the claim back meanwhile would lose a whole group.
            await asyncio.wait((putting,))
            if (error := putting.exception()) is not None:
                log.error("group %s was not handed in: %s", work.claim.gid, error)
            raise

    def _why_filtered(self, work: Work, trajectories: Sequence[Trajectory]) -> str | None:
        shared = shared_reward(trajectories)
        if shared is None or work.stream != "train" or not self._settings.filters_zero_variance:
            return None
        # All right and all wrong ask for different prompts. On a continuum rewards seldom agree: they count as one.
        at, name = f"zero_variance_at_{shared:g}", "zero_variance_at_others"
        if at in self.counts or sum(key.startswith("zero_variance_at_") for key in self.counts) < MAX_SHARED_REWARDS:
            name = at
        self.counts[name] += 1
        return ZERO_VARIANCE

    async def _fail(self, work: Work, parking: Parking, reason: str, message: str) -> str:
        try:
            return await waits.in_thread(
                work.ledger.fail,
                work.claim,
                reason,
                message,
                sampled=parking.sampled(),
                data_source=work.row.data_source,
            )
        except Fenced:
            return "fenced"


def _drawn(work: Work) -> dict[str, object]:
    """Why this prompt was played, for people who read the group."""
    draw = work.claim.draw
    return {} if draw is None else {"position": draw.position, "drawn_because": draw.reason}


def _why_not(
    playing: asyncio.Task[tuple[Trajectory, ...]], keeper: asyncio.Task[str], parker: asyncio.Task[None]
) -> str:
    """Why the group is not to be finished; empty: it is whole. Raises what ended it."""
    if playing.done():
        if isinstance(error := playing.exception(), WaitTimeout):
            log.warning("a group is given back, which costs its prompt nothing: %s", error)
            return "given_up"
        playing.result()
        return ""
    if keeper.done():
        return keeper.result()
    if parker.done():
        parker.result()
    return "halted"
