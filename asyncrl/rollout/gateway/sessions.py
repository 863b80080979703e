"""The sessions of a gateway by what names them, and the limits of having them."""

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from asyncrl.rollout.gateway.conversation import ProtocolError
from asyncrl.rollout.gateway.session import Session
from asyncrl.rollout.turns import EpisodeTask

RETRY_AFTER_S = 10.0  # what frees room is the end of a session, which takes seconds at least


@dataclass(frozen=True)
class SessionLimits:
    """Bounds of the sessions of one gateway.

    Attributes:
        max_sessions: at once, those that wait for a reward included.
        max_bytes: memory of all of them, about.
        max_session_bytes: memory of one.
        max_turns_in_flight: of one session.
    """

    max_sessions: int
    max_bytes: int
    max_session_bytes: int
    max_turns_in_flight: int


class Sessions:
    """Open sessions. Belongs to the event loop."""

    def __init__(self, limits: SessionLimits) -> None:
        self.limits = limits
        self._by_key: dict[str, Session] = {}
        self._by_id: dict[str, Session] = {}
        self._by_name: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_id.values()))

    @property
    def num_bytes(self) -> int:
        """Memory of all of them, about."""
        return sum(session.num_bytes for session in self._by_id.values())

    @property
    def num_in_flight(self) -> int:
        """Turns that are being sampled."""
        return sum(len(session.running) for session in self._by_id.values())

    def open(
        self,
        task: EpisodeTask | Callable[[str], EpisodeTask],
        kind: Literal["reserved", "online"],
        *,
        only: str | None = None,
        name: str = "",
        group: str = "",
    ) -> Session:
        """A new session.

        Args:
            task: what it is played for; or made from the session's id.
        Raises:
            ProtocolError: there are too many, or they have too much memory; come back later.
        """
        self._refuse_more()
        id, key = secrets.token_hex(8), f"as-{secrets.token_urlsafe(24)}"
        made = task if isinstance(task, EpisodeTask) else task(id)
        session = Session(id, key, made, kind, only=only, name=name, group=group)
        self._by_id[id] = self._by_key[key] = session
        if name:
            self._by_name[name] = session
        return session

    def close(self, session: Session) -> None:
        """Forget a session; its turns in flight are given up."""
        session.give_up()
        self._by_id.pop(session.id, None)
        self._by_key.pop(session.key, None)
        if self._by_name.get(session.name) is session:
            del self._by_name[session.name]

    def by_key(self, key: str) -> Session | None:
        """The session that a key names."""
        return self._by_key.get(key)

    def by_name(self, name: str) -> Session | None:
        """The online session that its user named so."""
        return self._by_name.get(name)

    def find(self, id: str) -> Session | None:
        """The session with this id or name."""
        return self._by_id.get(id) or self._by_name.get(id)

    def by_id(self, id: str) -> Session:
        """The session with this id or name.

        Raises:
            ProtocolError: there is none.
        """
        found = self.find(id)
        if found is None:
            raise ProtocolError(
                404, "not_found", f"There is no session {id!r}: it was closed, expired or never opened."
            )
        return found

    def admit_turn(self, session: Session) -> None:
        """Refuse a turn of a session that has no room for it.

        Raises:
            ProtocolError: too large, or too many turns in flight.
        """
        limits = self.limits
        if session.num_bytes >= limits.max_session_bytes:
            raise ProtocolError(
                413,
                "too_large",
                f"The session has {session.num_bytes} bytes, gateway.max_session_bytes is {limits.max_session_bytes}: "
                "it takes no further turn. End it.",
            )
        if len(session.running) >= limits.max_turns_in_flight:
            raise ProtocolError(
                429,
                "rate_limit",
                f"{len(session.running)} turns of the session are in flight, the most that "
                "gateway.max_turns_in_flight allows.",
                retry_after_s=1.0,
            )
        session.last_used_s = time.monotonic()

    def idle_for(self, seconds: float, kind: str) -> list[Session]:
        """Sessions of this kind that nobody has used for so long."""
        before_s = time.monotonic() - seconds
        return [s for s in self if s.kind == kind and s.last_used_s < before_s and not s.running]

    def _refuse_more(self) -> None:
        limits = self.limits
        if len(self) >= limits.max_sessions:
            raise ProtocolError(
                429,
                "rate_limit",
                f"{len(self)} sessions are open, the most that gateway.max_sessions allows. End some, or start "
                "another gateway.",
                retry_after_s=RETRY_AFTER_S,
            )
        if (num_bytes := self.num_bytes) >= limits.max_bytes:
            raise ProtocolError(
                429,
                "rate_limit",
                f"The open sessions have {num_bytes} bytes, gateway.max_bytes is {limits.max_bytes}. End some, or "
                "start another gateway.",
                retry_after_s=RETRY_AFTER_S,
            )
