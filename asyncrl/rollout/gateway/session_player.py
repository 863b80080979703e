"""Play an episode by having a harness play it: what a worker has in place of an environment."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from asyncrl.data.rows import PromptRow
from asyncrl.envs.base import Reward
from asyncrl.envs.rewards.pool import RewardPool
from asyncrl.errors import WaitTimeout
from asyncrl.report.speeds import Durations
from asyncrl.rollout.agent_states import AgentState, AgentStates
from asyncrl.rollout.episode import EpisodeFailed, EpisodeTask, PromptMemo
from asyncrl.rollout.gateway.conversation import ProtocolError
from asyncrl.rollout.gateway.harness_demand import HarnessDemand
from asyncrl.rollout.gateway.session import Session, SessionEnd
from asyncrl.rollout.gateway.sessions import Sessions
from asyncrl.rollout.progress import Progress
from buffer import Trajectory, TrajectoryError

OFFERED = "session waits for a harness"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlaySettings:
    """Deadlines of sessions of reserved groups.

    Attributes:
        offer_s: seconds a session waits for a harness while no other one of its group is played; then the group is
            given back at no cost.
        session_s: seconds from there to its end; then it has no reward.
        idle_s: seconds without a turn after which it has no reward.
    """

    offer_s: float
    session_s: float
    idle_s: float


class SessionPlayer:
    """Plays episodes as sessions. `counts` has what became of them, by name."""

    def __init__(
        self,
        sessions: Sessions,
        demand: HarnessDemand,
        rewards: RewardPool,
        settings: PlaySettings,
        counts: Counter[str],
    ) -> None:
        self._sessions, self._demand, self._rewards, self._settings = sessions, demand, rewards, settings
        self.counts = counts
        self._groups: dict[tuple[str, int], _GroupPlay] = {}
        self.states, self.environment_s = AgentStates(), Durations()

    async def play(self, task: EpisodeTask, progress: Progress, memo: PromptMemo) -> Trajectory:
        """Open a session, and wait for its end.

        Raises:
            WaitTimeout: no harness took it.
            EpisodeFailed: it ended without a turn, or its tokens contradict each other.
        """
        del memo  # a harness makes its own prompt
        if progress.trajectory is not None:
            return progress.trajectory
        if progress.is_resumed:
            self.counts["partials_restarted"] += 1
            progress.start_over()  # the harness that played it is not there any more
        try:
            session = self._sessions.open(task, "reserved", only=progress.session.only)
        except ProtocolError as error:
            raise WaitTimeout(OFFERED, 0.0, 0.0, error.message) from error
        session.on_turn = lambda: progress.builder.take_rows(session.trajectory_rows())
        try:
            with self.states.episode() as state, self._in_group(task) as group:
                await self._offer(session, group)
                self.counts["sessions_reserved"] += 1
                state.enter(AgentState.INTERACTING)
                with group.playing():
                    end = await self._end(session)
                return await self._trajectory(task, session, progress, end)
        finally:
            self._sessions.close(session)

    async def cut(self, progress: Progress) -> None:
        """A harness's turns are not asked for as far as they are: nobody could go on from them."""

    @contextmanager
    def _in_group(self, task: EpisodeTask) -> Iterator["_GroupPlay"]:
        """The play of the group of an episode, kept while any of its episodes is open."""
        key = (task.stream, task.ordinal)
        group = self._groups.setdefault(key, _GroupPlay())
        group.num_open += 1
        try:
            yield group
        finally:
            group.num_open -= 1
            if not group.num_open:
                del self._groups[key]

    async def _offer(self, session: Session, group: "_GroupPlay") -> None:
        waited_s = self._settings.offer_s
        while True:
            try:
                await self._demand.offer(session, waited_s)
                return
            except TimeoutError:
                # A runner may play the sessions of a group one after the other.
                waited_s = self._settings.offer_s - group.idle_s
                if waited_s > 0:
                    continue
            self.counts["sessions_untaken"] += 1
            limit_s = self._settings.offer_s
            raise WaitTimeout(OFFERED, limit_s, limit_s, "no harness asked for it; is the runner still at work?")

    async def _end(self, session: Session) -> SessionEnd:
        """What the harness said at the end, or that it said nothing."""
        settings, loop = self._settings, asyncio.get_running_loop()
        deadline_s = loop.time() + settings.session_s
        while True:
            idle_end_s = session.last_used_s + settings.idle_s if not session.running else loop.time() + settings.idle_s
            end_s = min(deadline_s, idle_end_s)
            await asyncio.wait((session.ended,), timeout=max(0.0, end_s - loop.time()))
            if session.ended.done():
                return session.ended.result()
            now_s = loop.time()
            idle_s = 0.0 if session.running else now_s - session.last_used_s
            if now_s < deadline_s and idle_s < settings.idle_s:
                continue  # it was used meanwhile
            self.counts["sessions_timed_out"] += 1
            late = (
                f"gateway.session_timeout_s = {settings.session_s:g} s"
                if now_s >= deadline_s
                else f"gateway.idle_timeout_s = {settings.idle_s:g} s without a turn"
            )
            end = SessionEnd(Reward(None, f"session_timeout: the harness did not end it within {late}"))
            session.end(end)
            return end

    async def _trajectory(self, task: EpisodeTask, session: Session, progress: Progress, end: SessionEnd) -> Trajectory:
        if not session.rows:
            said = f": {end.reward.error}" if end.reward is not None and end.reward.error else ""
            raise EpisodeFailed("session_without_turn", f"session {session.id} ended before its first answer{said}")
        reward = end.reward if end.reward is not None else await self._rewards.score(task.row, session.last_text)
        extra: dict[str, object] = {}
        if session.forks:
            extra["rows_begun"] = dict(session.forks)
        if task.with_text:
            extra |= {"prompt_text": _as_text(task.row), "response_text": session.last_text}
        try:
            return progress.finish(
                reward, finish_reason=session.last_finish, num_turns=session.num_turns, extra_info=extra
            )
        except TrajectoryError as error:
            raise EpisodeFailed("bad_trajectory", str(error)) from error


@dataclass
class _GroupPlay:
    """What harnesses do with one group."""

    num_open: int = 0
    num_playing: int = 0
    last_played_s: float = field(default_factory=time.monotonic)

    @property
    def idle_s(self) -> float:
        """Seconds since one of its sessions was played."""
        return 0.0 if self.num_playing else time.monotonic() - self.last_played_s

    @contextmanager
    def playing(self) -> Iterator[None]:
        self.num_playing += 1
        try:
            yield
        finally:
            self.num_playing -= 1
            self.last_played_s = time.monotonic()


def _as_text(row: PromptRow) -> str:
    return "\n".join(f"{message.get('role', '')}: {message.get('content', '')}" for message in row.messages)
