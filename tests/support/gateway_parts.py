"""The turns of a gateway over a scripted fleet, without HTTP and without a buffer."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from asyncrl.data.rows import PromptRow
from asyncrl.envs.tools.parsers import PARSERS
from asyncrl.rollout.episode import Chat
from asyncrl.rollout.gateway.conversation import AskedSampling, TurnAnswer, TurnRequest
from asyncrl.rollout.gateway.session import Session
from asyncrl.rollout.gateway.session_turns import Repeat, SessionTurns
from asyncrl.rollout.gateway.sessions import SessionLimits, Sessions
from asyncrl.rollout.gateway.turn_planning import TurnPlanner
from asyncrl.rollout.gateway.turn_taking import TurnSettings, TurnTaker
from asyncrl.rollout.turns import EpisodeTask
from tests.support.ascii_chat import AsciiChat
from tests.support.episode_settings import episode_settings
from tests.support.scripted_fleet import ScriptedFleet

LIMITS = SessionLimits(max_sessions=100, max_bytes=1 << 30, max_session_bytes=1 << 24, max_turns_in_flight=8)
SETTINGS = TurnSettings(
    model_name="policy", timeout_s=10.0, stream_tokens=4, splits_thoughts=True, refuses_other_sampling=False
)
SEARCH: Mapping[str, Any] = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}


def user(text: str) -> dict[str, Any]:
    """A user's message."""
    return {"role": "user", "content": text}


def said(answer: TurnAnswer) -> dict[str, Any]:
    """An answer as a harness sends it back."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.tool_calls:
        message["tool_calls"] = [call.to_json() for call in answer.tool_calls]
    return message


def task(ordinal: int = 3, episode: int = 0) -> EpisodeTask:
    """What a session is played for."""
    return EpisodeTask(PromptRow(0, "chat", (user("q"),), None, {}), "train", ordinal, episode, lambda version: True)


@dataclass
class GatewayParts:
    """Sessions and their turns."""

    chat: Chat = field(default_factory=AsciiChat)
    fleet: ScriptedFleet = field(default_factory=ScriptedFleet)
    limits: SessionLimits = LIMITS
    settings: TurnSettings = SETTINGS
    context_length: int = 4000
    max_rows: int = 10
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        sampling = episode_settings(context_length=self.context_length, max_new_tokens=400)
        self.sessions = Sessions(self.limits)
        planner = TurnPlanner(self.chat, self.counts, context_length=self.context_length, max_rows=self.max_rows)
        taker = TurnTaker(self.chat, self.fleet, sampling, self.settings, PARSERS["hermes"], self.counts)
        self.turns = SessionTurns(self.sessions, planner, taker)

    def session(self) -> Session:
        """A new one."""
        return self.sessions.open(task(), "reserved")

    async def ask(
        self,
        session: Session,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        repeat: Repeat | None = None,
        **sampling: Any,
    ) -> TurnAnswer:
        """One turn, without a stream."""
        request = TurnRequest(tuple(messages), tuple(tools), AskedSampling(**sampling))
        turn = self.turns.begin(session, request, repeat)
        turn.join()
        try:
            return await turn.answer()
        finally:
            turn.leave()

    async def settled(self, condition: Any) -> None:
        """Let tasks run until something holds."""
        for _ in range(1000):
            if condition():
                return
            await asyncio.sleep(0)
        raise AssertionError("it never held")
