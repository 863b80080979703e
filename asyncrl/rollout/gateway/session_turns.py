"""Begin the turns of sessions, and find the one that a repeated request asks for again."""

from dataclasses import dataclass
from functools import partial

from asyncrl.rollout.gateway.conversation import TurnRequest
from asyncrl.rollout.gateway.running_turn import RunningTurn
from asyncrl.rollout.gateway.session import Session
from asyncrl.rollout.gateway.sessions import Sessions
from asyncrl.rollout.gateway.turn_planning import TurnPlanner
from asyncrl.rollout.gateway.turn_taking import TurnTaker


@dataclass(frozen=True, slots=True)
class Repeat:
    """What makes a request known when it comes again.

    Attributes:
        key: equal for the same request.
        is_one: whether this is such a repeat, if there was one before.
    """

    key: str
    is_one: bool


class SessionTurns:
    """Turns of all sessions."""

    def __init__(self, sessions: Sessions, planner: TurnPlanner, taker: TurnTaker) -> None:
        self._sessions, self._planner, self._taker = sessions, planner, taker

    def begin(self, session: Session, request: TurnRequest, repeat: Repeat | None) -> RunningTurn:
        """The turn of a request, which is being sampled, or was if the request is a repeat. The caller joins it.

        Without a key for repeats, two equal requests are two turns: a harness may want both.
        Raises:
            ProtocolError: the session takes no further turn now, or the request cannot be answered.
        """
        if repeat is not None and repeat.is_one:
            known = session.turn_of(repeat.key)
            if known is not None:
                self._taker.counts["turns_repeated"] += 1
                return known
        self._sessions.admit_turn(session)
        self._taker.check(request)
        planned = self._planner.plan(session, request)
        turn = RunningTurn(partial(self._taker.take, session, planned, request))
        session.run(turn, repeat.key if repeat is not None else None)
        return turn

    def num_tokens(self, session: Session, request: TurnRequest) -> int:
        """Tokens that the model would read for a request. Raises ProtocolError if it cannot read the messages."""
        return self._planner.num_tokens(session, request)
