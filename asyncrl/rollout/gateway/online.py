"""Sessions that nobody reserved, put into the buffer once they have their rewards: also hours after they ended.

consumes  rewarded sessions    waits for     enough of them for a group; admission: the trainer's advance, bytes
                               unblocked by  trainer.loop, advance and commit
produces  groups, to buffer    unblocks      trainer.loop, lease

Each group takes the next ordinal that admission grants, as an imported one does.
"""

import asyncio
import hashlib
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable

from asyncrl import waits
from asyncrl.data.rows import PromptRow
from asyncrl.envs.base import Reward
from asyncrl.errors import WaitTimeout
from asyncrl.rollout.gateway.conversation import ProtocolError
from asyncrl.rollout.gateway.session import Session
from asyncrl.rollout.gateway.sessions import Sessions
from asyncrl.rollout.turns import EpisodeTask
from buffer import Claim, Fenced, Group, NotAdmitted, ReplayBuffer, Trajectory

ADMISSION = "online group waits for admission"

log = logging.getLogger(__name__)


def online_task(id: str, data_source: str) -> EpisodeTask:
    """What an online session is played for: no prompt of the run. Its seeds come from its id."""
    number = int.from_bytes(hashlib.blake2b(id.encode(), digest_size=8).digest(), "little") >> 1
    row = PromptRow(0, data_source, (), None, {})
    return EpisodeTask(row, "train", number, 0, lambda version: True)


class OnlineGroups:
    """Collects rewarded sessions until they make a group of the run's size, and puts it. `counts` has outcomes.

    Sessions with one name of a group belong together: they answer one task, and share its baseline. Those without are
    put together by data source, in the order of their rewards.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        worker: str,
        sessions: Sessions,
        counts: Counter[str],
        *,
        group_size: int,
        admission_wait_s: float,
    ) -> None:
        self._buffer, self._worker, self._sessions, self._counts = buffer, worker, sessions, counts
        self._group_size, self._admission_wait_s = group_size, admission_wait_s
        self._waiting: dict[tuple[str, str], list[tuple[Session, Trajectory]]] = defaultdict(list)
        self._rewarded: set[Session] = set()
        self._putting: set[asyncio.Task[None]] = set()
        self._refusal: NotAdmitted | None = None

    def __contains__(self, session: Session) -> bool:
        """Whether it has its reward."""
        return session in self._rewarded

    @property
    def num_waiting(self) -> int:
        """Rewarded sessions whose group is not complete."""
        return sum(map(len, self._waiting.values()))

    def reward(self, session: Session, reward: Reward) -> None:
        """Take a session's reward; the session stays in the limits until its group is in.

        Raises:
            ProtocolError: it has no answer that a reward could be for.
            TrajectoryError: its tokens contradict each other.
        """
        if not session.rows:
            self._sessions.close(session)
            raise ProtocolError(409, "conflict", f"Session {session.id} has no answer, so it is dropped.")
        trajectory = Trajectory(
            rows=session.trajectory_rows(),
            reward=reward.value,
            reward_error=reward.error,
            reward_parts=reward.parts,
            finish_reason=session.last_finish,
            num_turns=session.num_turns,
            extra_info={"session": session.name or session.id, "rows_begun": dict(session.forks)},
        )
        source = session.task.row.data_source
        members = self._waiting[source, session.group]
        members.append((session, trajectory))
        self._rewarded.add(session)
        session.last_used_s = time.monotonic()
        self._counts["sessions_rewarded"] += 1
        if len(members) == self._group_size:
            del self._waiting[source, session.group]
            task = asyncio.create_task(self._put(source, members), name="put of an online group")
            self._putting.add(task)
            task.add_done_callback(self._putting.discard)

    def drop(self, session: Session) -> bool:
        """Drop a rewarded session that waits for the others of its group; False: it is on its way in."""
        for key, members in list(self._waiting.items()):
            kept = [member for member in members if member[0] is not session]
            if len(kept) == len(members):
                continue
            self._rewarded.discard(session)
            self._waiting[key] = kept
            if not kept:
                del self._waiting[key]
            return True
        return False

    async def settle(self, deadline_s: float) -> None:
        """Wait for groups that are on their way in; what is left then is lost, and said so."""
        _, late = await asyncio.wait(self._putting, timeout=deadline_s) if self._putting else (set(), set())
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        if num_lost := self.num_waiting + len(late) * self._group_size:
            log.warning(
                "%d rewarded online sessions are lost: their groups were not complete or not admitted", num_lost
            )

    async def _put(self, source: str, members: list[tuple[Session, Trajectory]]) -> None:
        held: list[Claim] = []
        try:
            claim = await self._claim(held)
            group = Group(claim.ordinal, claim.attempt, source, tuple(trajectory for _, trajectory in members))
            outcome = await waits.in_thread(self._buffer.put, claim, group)
            held.clear()
        except Fenced as error:
            held.clear()
            log.warning("an online group is dropped: %s", error)
            outcome = "fenced"
        except WaitTimeout as error:
            log.warning("an online group is dropped: %s", error)
            outcome = "not_admitted"
        finally:
            for claim in held:  # whatever ended it, the ordinal goes back at once and at no cost
                await waits.in_thread(self._buffer.abandon, claim)
            for session, _ in members:
                self._sessions.close(session)
                self._rewarded.discard(session)
        self._counts[f"online_groups_{outcome}"] += 1

    async def _claim(self, held: list[Claim]) -> Claim:
        def attempt() -> Claim | None:
            answer = self._buffer.reserve(self._worker)
            if isinstance(answer, NotAdmitted):
                self._refusal = answer
                return None
            held.append(answer)
            return answer

        hints = await waits.in_thread(self._buffer.hints, "room")
        wake: Callable[[float], object] = hints.wait
        return await waits.until(
            ADMISSION,
            attempt,
            why=lambda: f"{self._refusal.reason}: {self._refusal.detail}" if self._refusal else "not asked yet",
            wake=wake,
            deadline_s=self._admission_wait_s,
        )
