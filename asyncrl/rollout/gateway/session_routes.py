"""Routes that runners of harnesses speak to: ask for a session, look at it, end and reward it."""

import math
from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from asyncrl.data.values import Json, kind
from asyncrl.envs.base import Reward
from asyncrl.rollout.gateway.access import NAME, Access
from asyncrl.rollout.gateway.conversation import ProtocolError
from asyncrl.rollout.gateway.exchange import read_object, refusal, reply, while_connected
from asyncrl.rollout.gateway.harness_demand import HarnessDemand
from asyncrl.rollout.gateway.online import OnlineGroups
from asyncrl.rollout.gateway.openai_errors import openai_error
from asyncrl.rollout.gateway.session import Session, SessionEnd
from asyncrl.rollout.gateway.sessions import Sessions

Opens = Callable[[str, str, str], Session]
"""Opens an online session: its name, its group, its data source; each maybe empty."""
MAX_WAIT_S = 300.0
RETRY_AFTER_S = 2.0


class SessionRoutes:
    """Sessions from outside.

    Args:
        base_url: where this gateway is reached.
        why_none: why no session could be reserved, for the reply.
    """

    def __init__(
        self,
        access: Access,
        sessions: Sessions,
        demand: HarnessDemand,
        online: OnlineGroups,
        open_online: Opens,
        *,
        base_url: Callable[[], str],
        why_none: Callable[[], str],
    ) -> None:
        self._access, self._sessions, self._demand, self._online = access, sessions, demand, online
        self._open_online, self._base_url, self._why_none = open_online, base_url, why_none

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            Route("/health", self._health, methods=["GET"]),
            Route("/sessions", _handled(self._open), methods=["POST"]),
            Route("/sessions/{id}", _handled(self._show), methods=["GET"]),
            Route("/sessions/{id}/end", _handled(self._end), methods=["POST"]),
            Route("/sessions/{id}/reward", _handled(self._reward), methods=["POST"]),
        ]

    async def _health(self, request: Request) -> Response:
        del request
        return reply({"status": "ok", "sessions": len(self._sessions)})

    async def _open(self, request: Request) -> Response:
        self._access.require_gateway(request.headers)
        _, body = await read_object(request, 1 << 16)
        if _text(body, "kind", "reserved") == "online":
            name = _text(body, "name", "")
            if name and NAME.fullmatch(name) is None:
                raise _invalid("name", name, "letters, digits and ._-")
            if name and self._sessions.by_name(name) is not None:
                raise ProtocolError(409, "conflict", f"There is a session {name!r} already.")
            session = self._open_online(name, _text(body, "group", ""), _text(body, "data_source", ""))
            return reply(self._described(session), 201)
        if body.get("kind", "reserved") != "reserved":
            raise _invalid("kind", body["kind"], "reserved or online")
        wait_s = _number(body, "wait_s", 30.0)
        if not 0 <= wait_s <= MAX_WAIT_S:
            raise _invalid("wait_s", wait_s, f"0..{MAX_WAIT_S:g} seconds")
        try:
            session = await while_connected(request, self._demand.take(wait_s))
        except TimeoutError:
            message = f"No session within {wait_s:g} s: {self._why_none()}"
            raise ProtocolError(503, "server", message, retry_after_s=RETRY_AFTER_S) from None
        return reply({**self._described(session), **_task(session)}, 201)

    async def _show(self, request: Request) -> Response:
        id = request.path_params["id"]
        self._access.may_see(request.headers, self._sessions.find(id))
        return reply(_state(self._sessions.by_id(id)))

    async def _end(self, request: Request) -> Response:
        session, body = await self._ended_by(request)
        reward = _reward_of(body)
        session.end(SessionEnd(reward))
        if session.kind == "online" and reward is not None:
            self._online.reward(session, reward)
        return reply(_state(session))

    async def _reward(self, request: Request) -> Response:
        session, body = await self._ended_by(request)
        reward = _reward_of(body)
        if reward is None:
            raise _invalid("reward", None, "a number, or reward_error")
        if session.kind == "reserved":
            session.end(SessionEnd(reward))
        elif session in self._online:
            raise ProtocolError(409, "conflict", "The session has its reward already.")
        else:
            if not session.ended.done():
                session.end(SessionEnd(reward))
            self._online.reward(session, reward)
        return reply(_state(session))

    async def _ended_by(self, request: Request) -> tuple[Session, dict[str, Json]]:
        # The agent has the session's key: it must not be able to reward itself.
        self._access.require_gateway(request.headers)
        session = self._sessions.by_id(request.path_params["id"])
        _, body = await read_object(request, 1 << 16)
        return session, body

    def _described(self, session: Session) -> dict[str, Json]:
        base = self._base_url()
        return {
            "id": session.id,
            "kind": session.kind,
            "api_key": session.key,
            "base_url": f"{base}/s/{session.key}/v1",
            "anthropic_base_url": f"{base}/s/{session.key}",
        }


def _handled(handle: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    async def handler(request: Request) -> Response:
        try:
            return await handle(request)
        except ProtocolError as error:
            return refusal(error, openai_error)

    return handler


def _task(session: Session) -> dict[str, Json]:
    """What a reserved session is played for."""
    task, row = session.task, session.task.row
    return {
        "ordinal": task.ordinal,
        "episode": task.episode,
        "stream": task.stream,
        "data_source": row.data_source,
        "messages": [dict(message) for message in row.messages],
        "tools": [dict(tool) for tool in row.tools],
        "ground_truth": row.ground_truth,
        "extra_info": dict(row.extra_info),
    }


def _state(session: Session) -> dict[str, Json]:
    rows: list[Json] = [
        {"tokens": len(row.row.token_ids), "sampled": row.row.num_sampled, "answers": len(row.ends)}
        for row in session.rows
    ]
    return {
        "id": session.id,
        "kind": session.kind,
        "name": session.name,
        "ended": session.ended.done(),
        "turns": session.num_turns,
        "turns_in_flight": len(session.running),
        "rows": rows,
        "rows_begun": dict(session.forks),
        "bytes": session.num_bytes,
    }


def _reward_of(body: Mapping[str, Json]) -> Reward | None:
    """The reward in a body; None: it says none.

    Raises:
        ProtocolError: it is no finite number, or there are both a reward and an error.
    """
    reward, error = body.get("reward"), body.get("reward_error")
    if error is not None:
        if not isinstance(error, str) or not error or reward is not None:
            raise _invalid("reward_error", error, "a text, and no reward beside it")
        return Reward(None, f"harness: {error}")
    if reward is None:
        return None
    parts = body.get("reward_parts") or {}
    if not isinstance(parts, dict):
        raise _invalid("reward_parts", parts, "an object of numbers")
    return Reward(
        _number(body, "reward", math.nan),
        None,
        {name: _number(parts, name, math.nan) for name in parts},
    )


def _number(body: Mapping[str, Json], name: str, default: float) -> float:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _invalid(name, value, "a finite number")
    return float(value)


def _text(body: Mapping[str, Json], name: str, default: str) -> str:
    value = body.get(name, default)
    if not isinstance(value, str):
        raise _invalid(name, value, "a text")
    return value


def _invalid(name: str, found: Json, expected: str) -> ProtocolError:
    shown = found if isinstance(found, int | float | str) else kind(found)
    return ProtocolError(400, "invalid_request", f"{name} is {str(shown)[:100]!r}, expected {expected}.")
