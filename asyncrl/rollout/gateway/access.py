"""Who may do what at a gateway: its key opens sessions and rewards them, a session's key takes turns of that one."""

import hmac
import re
from collections.abc import Callable

from starlette.datastructures import Headers

from asyncrl.rollout.gateway.conversation import ProtocolError
from asyncrl.rollout.gateway.session import Session
from asyncrl.rollout.gateway.sessions import Sessions

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""What an online session may be called in a URL."""
ANSWER_WITH_KEY = "Send a session's key as the API key, or use the base URL that the gateway gave with it."


class Access:
    """Reads keys of requests. Keys are compared in constant time and never shown.

    Args:
        key: the gateway's.
        open_online: opens an online session of a name, for whoever has the gateway's key.
    """

    def __init__(self, key: str, sessions: Sessions, open_online: Callable[[str], Session]) -> None:
        self._key, self._sessions, self._open_online = key.encode(), sessions, open_online

    def require_gateway(self, headers: Headers) -> None:
        """Refuse who has not the gateway's key.

        Raises:
            ProtocolError: 401.
        """
        if not self._is_gateway_key(_key_of(headers)):
            raise ProtocolError(
                401,
                "authentication",
                "This needs the gateway's key, as `Authorization: Bearer ...`. `asyncrl gateway` says where it is.",
            )

    def session_of(self, headers: Headers, named: str | None) -> Session:
        """The session that a request is of.

        Args:
            named: what its URL says after /s/: a session's key, or the name of an online session; None: nothing.
        Raises:
            ProtocolError: 401 for a key that opens nothing, 404 for a name.
        """
        key = _key_of(headers)
        if named is not None:
            session = self._sessions.by_key(named)
            if session is not None:
                return session
            if not self._is_gateway_key(key):
                raise self._unknown()
            if NAME.fullmatch(named) is None:
                raise ProtocolError(404, "not_found", "The name of a session has letters, digits and ._- only.")
            return self._sessions.by_name(named) or self._open_online(named)
        session = self._sessions.by_key(key)
        if session is not None:
            return session
        if self._is_gateway_key(key):
            raise ProtocolError(
                400,
                "invalid_request",
                "The gateway's key names no session. Use the base URL /s/NAME/v1 for an online session of that name, "
                f"or POST /sessions for one of the run's prompts. {ANSWER_WITH_KEY}",
            )
        raise self._unknown()

    def may_see(self, headers: Headers, session: Session | None) -> None:
        """Refuse who has neither the gateway's key nor the session's, also where there is none: names can be guessed.

        Raises:
            ProtocolError: 401.
        """
        if session is None or not hmac.compare_digest(_key_of(headers).encode(), session.key.encode()):
            self.require_gateway(headers)

    def _is_gateway_key(self, key: str) -> bool:
        return hmac.compare_digest(key.encode(), self._key)

    @staticmethod
    def _unknown() -> ProtocolError:
        message = f"The key opens no session: it ended, expired or never was. {ANSWER_WITH_KEY}"
        return ProtocolError(401, "authentication", message)


def _key_of(headers: Headers) -> str:
    """The key of a request, as OpenAI's clients send it or as Anthropic's do."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
