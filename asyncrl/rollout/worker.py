"""A rollout worker: reserve -> play the group's episodes within the slots -> put, for as long as it is not stopped.

consumes  prompts, by ordinals that buffer admits   waits for     admission: the trainer's advance, bytes, a trainer
                                                    unblocked by  trainer.loop, advance and commit
produces  groups of trajectories, to buffer         waits for     a server at the claim's version
                                                    unblocked by  inference.host, acknowledge

A graceful stop reserves nothing more and finishes what is in flight, up to a deadline or until it is told to hurry;
the rest is parked and given back at no cost. Cancelling `run` gives everything back at once, without parking.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from asyncrl import waits
from asyncrl.inference.fleet import Fleet
from asyncrl.report.kv_age import FACT as KV
from asyncrl.report.rollout_facts import ENDED, SPEEDS, WAIT
from asyncrl.rollout.group import GroupPlayer, GroupSettings
from asyncrl.rollout.pacing import Slots
from asyncrl.rollout.player import Player
from asyncrl.rollout.reservation import Prompts, Reservations, Stopped
from asyncrl.rollout.teachers import Teachers
from asyncrl.rollout.work import Work
from buffer import ReplayBuffer

ADMISSION = "worker waits for admission"
FINISH = "worker finishes its groups"
PARK = "worker parks its groups"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerSettings:
    """Bounds of a worker.

    Attributes:
        slots: episodes played at once.
        groups: how claims are kept, and when groups are parked.
        stop_timeout_s: seconds that a graceful stop gives to groups in flight to finish.
        park_timeout_s: seconds that it then gives to the others to be parked and given back.
        sweep_every_s: seconds between two looks for claims of the dead, while not admitted.
        report_every_s: seconds between two reports of facts.
        admission_wait_s: seconds without admission after which the worker gives up (exit code 75).
        recheck_s: longest stay in that wait without another look; a stop is noticed after it.
    """

    slots: int
    groups: GroupSettings
    stop_timeout_s: float
    park_timeout_s: float
    sweep_every_s: float
    report_every_s: float = 2.0
    admission_wait_s: float = 7 * 86400.0
    recheck_s: float = 1.0


class Worker:
    """One worker of the rollout cluster, made of its parts.

    Args:
        name: in claims and reports, for people.
        buffer: the run's.
        fleet: the servers; run by this worker.
        player: plays one episode.
        teachers: score what was played for training.
        train, held_out: prompts of the run and of its evaluations.
        slots: places for episodes that are filled in a way of their own. None: `settings.slots` of them, at once.
        more_facts: what else is reported.
        after_report: called after each report, about every `settings.report_every_s` seconds; what it raises ends the
            worker.
    """

    def __init__(
        self,
        *,
        name: str,
        buffer: ReplayBuffer,
        fleet: Fleet,
        player: Player,
        teachers: Teachers | None = None,
        train: Prompts,
        held_out: Prompts | None,
        settings: WorkerSettings,
        slots: Slots | None = None,
        more_facts: Callable[[], Mapping[str, float | str]] = dict,
        after_report: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.name = name
        self._buffer, self._fleet, self._player = buffer, fleet, player
        self._train, self._held_out, self._settings = train, held_out, settings
        self._slots, self._more_facts = slots or Slots(settings.slots), more_facts
        self._after_report = after_report
        self._groups = GroupPlayer(player, self._slots, settings.groups, teachers)
        self._reported = (time.monotonic(), 0)
        self._reservations: Reservations | None = None
        self._ended = asyncio.Event()

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event | None = None) -> None:
        """Play until `stop` is set. A run that is stopped or paused admits nobody, and a resumed one goes on.

        Args:
            hurry: once it is set too, groups get no time to finish: they are parked where they are.
        Raises:
            WaitTimeout: not admitted for `admission_wait_s`.
            ServerLost: the buffer's server is gone.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                background = [
                    tasks.create_task(self._close_when(stop)),
                    tasks.create_task(self._fleet.run(self._ended)),
                    tasks.create_task(self._report_often()),
                ]
                await self._play_until(stop, hurry or asyncio.Event(), tasks)
                self._ended.set()
                for task in background:
                    task.cancel()
        except BaseExceptionGroup as group:
            raise _first(group) from group
        finally:
            if self._reservations is not None:
                await waits.in_thread(self._reservations.close)
            await self._fleet.close()
        await self._report()

    async def _play_until(self, stop: asyncio.Event, hurry: asyncio.Event, tasks: asyncio.TaskGroup) -> None:
        self._reservations = reservations = await waits.in_thread(
            lambda: Reservations(
                self._buffer,
                self.name,
                train=self._train,
                held_out=self._held_out,
                stopping=stop.is_set,
                sweep_every_s=self._settings.sweep_every_s,
                room_beside=lambda: self._settings.slots // max(1, self._fleet.num_servers),
                spare=self._spare,
            )
        )
        playing: set[asyncio.Task[None]] = set()
        while await self._slots.room():
            work = await self._reserve(reservations)
            if isinstance(work, Stopped):
                break
            task = tasks.create_task(self._play(work, reservations))
            playing.add(task)
            task.add_done_callback(playing.discard)
        self._slots.close()
        await self._finish(playing, hurry)

    def _spare(self, server: str | None) -> None:
        self._fleet.spared = server

    async def _play(self, work: Work, reservations: Reservations) -> None:
        await self._groups.play(work)
        reservations.done(work)

    async def _reserve(self, reservations: Reservations) -> Work | Stopped:
        return await waits.until(
            ADMISSION,
            reservations.attempt,
            why=reservations.why,
            wake=reservations.wake,
            deadline_s=self._settings.admission_wait_s,
            recheck_s=self._settings.recheck_s,
        )

    async def _close_when(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._slots.close()

    async def _finish(self, playing: set[asyncio.Task[None]], hurry: asyncio.Event) -> None:
        """Let groups finish, then have the late ones parked; what still runs after that is cancelled."""
        if not playing:
            return
        with waits.timed(FINISH, lambda: f"{len(playing)} groups are in flight"):
            late = await _still_running(playing, self._settings.stop_timeout_s, hurry)
        if late:
            log.warning("%s: %d groups were not finished in time; they are parked and given back", self.name, len(late))
            self._groups.halt()
            with waits.timed(PARK, lambda: f"{len(playing)} groups are in flight"):
                _, late = await asyncio.wait(late, timeout=self._settings.park_timeout_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def why_not_admitted(self) -> str:
        """Why the last prompt that it asked for was not granted, for people."""
        return self._reservations.why() if self._reservations is not None else "the worker is starting"

    async def _report_often(self) -> None:
        while not self._ended.is_set():
            await self._report()
            if self._after_report is not None:
                await self._after_report()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.report_every_s):
                    await self._ended.wait()

    async def _report(self) -> None:
        await waits.in_thread(self._buffer.report, self.name, self.facts())

    def facts(self) -> dict[str, float | str]:
        """What this worker has done and waits for, for people; the rate is since the call before."""
        now, tokens = time.monotonic(), self._player.counts["sampled_tokens"]
        before, tokens_before = self._reported
        self._reported = (now, tokens)
        refusal = self._reservations.refusal if self._reservations is not None else None
        return {
            "episodes_playing": self._slots.num_playing,
            "episodes_queued": self._slots.num_queued,
            "tokens_per_s": (tokens - tokens_before) / max(now - before, 1e-9),
            "not_admitted": "" if refusal is None else refusal.reason,
            **self._player.states.facts(),
            **{name: float(count) for name, count in (self._groups.counts + self._player.counts).items()},
            **self._more_facts(),
            **{f"{WAIT}{name}": spent_s for name, spent_s in waits.seconds().items()},
            ENDED: self._groups.lengths.as_fact(),
            KV: self._fleet.kv.as_fact(),
            SPEEDS: json.dumps(replace(self._fleet.speeds, environment=self._player.environment_s).to_json()),
        }


async def _still_running(
    tasks: set[asyncio.Task[None]], timeout_s: float, hurry: asyncio.Event
) -> set[asyncio.Task[None]]:
    """Wait until all tasks are done, `timeout_s` seconds have passed or `hurry` is set; those that are not done."""
    tasks = set(tasks)
    ends = asyncio.ensure_future(asyncio.wait(tasks)), asyncio.create_task(hurry.wait())
    try:
        await asyncio.wait(ends, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for end in ends:
            end.cancel()
    return {task for task in tasks if not task.done()}


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The exception that ended the others, with its exit code."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
