"""One session: the trajectory that a harness plays, as rows of exact tokens, and the turns of it that are in flight."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from asyncrl.envs.base import Reward
from asyncrl.rollout.gateway.conversation import ProtocolError
from asyncrl.rollout.gateway.messages import MessageKey
from asyncrl.rollout.gateway.running_turn import RunningTurn
from asyncrl.rollout.gateway.session_row import AnswerEnd, SessionRow
from asyncrl.rollout.turns import EpisodeTask
from buffer import Row

FIXED_BYTES = 4096
"""Memory of a session without rows, about."""


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """What a harness said at the end.

    Attributes:
        reward: None: it is to be computed, or comes later.
    """

    reward: Reward | None = None


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """A turn before its first token.

    Attributes:
        number: of its row.
        base: the row that it makes longer; None: it begins one.
        keys: of the request: tools and messages.
        ends: of the answers before it.
        token_ids: what the model reads behind that row.
    """

    number: int
    base: SessionRow | None
    keys: tuple[MessageKey, ...]
    ends: tuple[AnswerEnd, ...]
    token_ids: list[int]

    @property
    def num_tokens(self) -> int:
        """Tokens that the model reads."""
        return len(self.token_ids) + (0 if self.base is None else len(self.base.row.token_ids))


@dataclass(eq=False)
class Session:
    """One trajectory in the making. Belongs to the event loop.

    Attributes:
        id: its name in replies and logs; no secret.
        key: the secret that names it in requests.
        task: what it is played for: an episode of a reserved group, or nothing that was reserved.
        only: name of the one server that may sample for it; None: any.
        kind: reserved, or online.
        name: that its user gave to an online one; empty: none.
        group: sessions of one group are put together; of online ones.
        rows: the rows so far, by number.
        on_turn: called after each turn.
        num_turns: answers so far.
        server: that sampled the last of them; its cache knows the conversation.
        forks: rows by why they were begun.
        last_text, last_finish: of the last answer.
        last_used_s: when a turn was asked for, or ended, last; seconds of time.monotonic.
        running: turns in flight.
        ended: set when the harness has said so, or the session has to end.
    """

    id: str
    key: str = field(repr=False)
    task: EpisodeTask
    kind: Literal["reserved", "online"]
    only: str | None = None
    name: str = ""
    group: str = ""
    on_turn: Callable[[], None] = lambda: None
    rows: list[SessionRow] = field(default_factory=list)
    num_turns: int = 0
    server: str | None = None
    forks: Counter[str] = field(default_factory=Counter)
    last_text: str = ""
    last_finish: str = "stop"
    last_used_s: float = field(default_factory=time.monotonic)
    running: set[RunningTurn] = field(default_factory=set)
    ended: "asyncio.Future[SessionEnd]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    _repeatable: dict[str, RunningTurn] = field(default_factory=dict)
    _busy: Counter[int] = field(default_factory=Counter)
    _num_begun: int = 0
    _num_bytes: int = FIXED_BYTES

    @property
    def busy(self) -> frozenset[int]:
        """Numbers of the rows that turns in flight are of."""
        return frozenset(number for number, count in self._busy.items() if count)

    @property
    def num_rows(self) -> int:
        """Rows, those included whose first answer is being sampled."""
        return len(self.busy.union(row.number for row in self.rows))

    @property
    def num_bytes(self) -> int:
        """Memory that it takes, about; turns in flight not counted."""
        return self._num_bytes

    @property
    def num_sampled(self) -> int:
        """Tokens that were sampled."""
        return sum(row.row.num_sampled for row in self.rows)

    def begin(
        self,
        base: SessionRow | None,
        keys: tuple[MessageKey, ...],
        ends: tuple[AnswerEnd, ...],
        token_ids: list[int],
    ) -> PlannedTurn:
        """Note that a turn is in flight; `finish` or `drop` ends it."""
        number = self._num_begun if base is None else base.number
        self._num_begun += base is None
        self._busy[number] += 1
        return PlannedTurn(number, base, keys, ends, token_ids)

    def run(self, turn: RunningTurn, repeat_key: str | None) -> None:
        """Hold a turn while it is in flight, and the last one with a key for repeats until the next one has one."""
        self.running.add(turn)
        if repeat_key is not None:
            self._repeatable = {key: other for key, other in self._repeatable.items() if other in self.running}
            self._repeatable[repeat_key] = turn
        turn.task.add_done_callback(lambda _: self._ended(turn))

    def turn_of(self, repeat_key: str) -> RunningTurn | None:
        """The turn that came with this key, if it is in flight or was the last one, and has not failed."""
        turn = self._repeatable.get(repeat_key)
        return turn if turn is not None and turn.is_usable else None

    def _ended(self, turn: RunningTurn) -> None:
        self.running.discard(turn)
        self.last_used_s = time.monotonic()

    def drop(self, turn: PlannedTurn) -> None:
        """The turn has no answer: it leaves nothing behind."""
        self._busy[turn.number] -= 1

    def finish(self, turn: PlannedTurn, row: Row, answer: MessageKey) -> None:
        """Keep what a turn sampled.

        Args:
            row: the one that the turn makes longer, or begins, with what it sampled at its end.
            answer: key of what it said.
        Raises:
            ProtocolError: the session has ended meanwhile.
        """
        if self.ended.done():
            raise ended_already()
        keys = (*turn.keys, answer)
        ends = (*turn.ends, AnswerEnd(len(keys), len(row.token_ids)))
        grown = SessionRow(turn.number, keys, ends, row)
        if turn.base is None:
            self.rows.append(grown)
            self._num_bytes += grown.num_bytes
        else:
            self._num_bytes += grown.num_bytes - turn.base.num_bytes
            self.rows[self.rows.index(turn.base)] = grown
        self._busy[turn.number] -= 1
        self.num_turns += 1
        self.on_turn()

    def trajectory_rows(self) -> tuple[Row, ...]:
        """Its rows in the order in which they were begun."""
        return tuple(row.row for row in sorted(self.rows, key=lambda row: row.number))

    def end(self, end: SessionEnd) -> None:
        """No further turn; those in flight are given up. Raises ProtocolError if it has ended already."""
        if self.ended.done():
            raise ended_already()
        self.ended.set_result(end)
        self.give_up()

    def give_up(self) -> None:
        """Cancel the turns in flight."""
        for turn in list(self.running):
            turn.give_up()


def ended_already() -> ProtocolError:
    """The answer to whoever comes too late."""
    return ProtocolError(409, "conflict", "The session has ended: it takes no further turn. Ask for a new one.")
