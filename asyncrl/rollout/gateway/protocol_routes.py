"""Routes that harnesses speak to: each protocol's, under /v1 and under /s/SESSION/v1."""

import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Protocol, runtime_checkable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from asyncrl.data.values import Json
from asyncrl.rollout.gateway import openai_models
from asyncrl.rollout.gateway.access import Access
from asyncrl.rollout.gateway.conversation import ProtocolError, Translator, TurnRequest
from asyncrl.rollout.gateway.exchange import (
    Bodies,
    TurnStream,
    done_while_connected,
    read_object,
    refusal,
    reply,
    while_connected,
)
from asyncrl.rollout.gateway.openai_errors import openai_error
from asyncrl.rollout.gateway.session_turns import Repeat, SessionTurns
from asyncrl.rollout.gateway.translators import TRANSLATORS
from asyncrl.rollout.gateway.turn_dispatch import SESSION_PREFIX, Handler

SESSION = f"{SESSION_PREFIX}{{session}}"
"""Before a protocol's path: the session's key, or the name of an online session."""
IDEMPOTENCY_KEY, RETRY_COUNT = "idempotency-key", "x-stainless-retry-count"
"""Headers of a request that may come again: its key; and how often the official clients have sent it already."""


@runtime_checkable
class TokenCounter(Protocol):
    """A translator whose protocol can count tokens."""

    count_path: str

    def parse_count(self, body: Mapping[str, Json]) -> TurnRequest:
        """Read a body. Raises ProtocolError."""
        ...

    def render_count(self, num_tokens: int) -> Mapping[str, Json]:
        """The body of the reply."""
        ...


class ProtocolRoutes:
    """The protocols over the sessions.

    Args:
        model_name: under which the policy is listed.
    """

    def __init__(self, access: Access, turns: SessionTurns, bodies: Bodies, *, model_name: str) -> None:
        self._access, self._turns, self._bodies, self._model_name = access, turns, bodies, model_name
        self._created_s = int(time.time())

    def turns(self) -> dict[str, Handler]:
        """The handlers of turns, all POST, by path."""
        return {translator.path: self._turn(translator) for translator in TRANSLATORS}

    def routes(self) -> list[Route]:
        """All of them, those of turns included: other methods than POST are refused there."""
        return [
            Route(f"{prefix}{path}", handler, methods=[method])
            for method, path, handler in self._handlers()
            for prefix in ("", SESSION)
        ]

    def _handlers(self) -> Iterator[tuple[str, str, Handler]]:
        for translator in TRANSLATORS:
            yield "POST", translator.path, self._turn(translator)
            if isinstance(translator, TokenCounter):
                yield "POST", translator.count_path, self._count(translator, translator)
        yield "GET", openai_models.PATH, self._models
        yield "GET", f"{openai_models.PATH}/{{model:path}}", self._model

    def _turn(self, translator: Translator) -> Handler:
        async def handle(request: Request) -> Response:
            try:
                return await self._answer(request, translator)
            except ProtocolError as error:
                return refusal(error, translator.render_error)

        return handle

    async def _answer(self, request: Request, translator: Translator) -> Response:
        session = self._access.session_of(request.headers, request.path_params.get("session"))
        with ExitStack() as held:
            held.enter_context(self._bodies.held(request))
            raw, body = await read_object(request, self._bodies.max_bytes)
            asked = translator.parse(body)
            turn = self._turns.begin(session, asked, _repeat_of(request, raw))
            turn.join()
            held.callback(turn.leave)
            if not asked.stream:
                await done_while_connected(request, turn.task)
                return reply(translator.render(turn.result(), asked))
            # A refusal has a status of its own as long as nothing was sent.
            await while_connected(request, turn.begun())
            return TurnStream(translator.stream(turn.pieces(), asked), held.pop_all())

    def _count(self, translator: Translator, counter: TokenCounter) -> Handler:
        async def handle(request: Request) -> Response:
            try:
                session = self._access.session_of(request.headers, request.path_params.get("session"))
                with self._bodies.held(request):
                    _, body = await read_object(request, self._bodies.max_bytes)
                return reply(counter.render_count(self._turns.num_tokens(session, counter.parse_count(body))))
            except ProtocolError as error:
                return refusal(error, translator.render_error)

        return handle

    async def _models(self, request: Request) -> Response:
        try:
            self._access.session_of(request.headers, request.path_params.get("session"))
        except ProtocolError as error:
            return refusal(error, openai_error)
        return reply(openai_models.models_body(self._model_name, self._created_s))

    async def _model(self, request: Request) -> Response:
        try:
            self._access.session_of(request.headers, request.path_params.get("session"))
            if request.path_params["model"] != self._model_name:
                raise ProtocolError(404, "not_found", f"There is one model here: {self._model_name}.")
        except ProtocolError as error:
            return refusal(error, openai_error)
        return reply(openai_models.model_body(self._model_name, self._created_s))


def _repeat_of(request: Request, raw: bytes) -> Repeat | None:
    key = request.headers.get(IDEMPOTENCY_KEY)
    if key is not None:
        return Repeat(f"key {key}", is_one=True)
    count = request.headers.get(RETRY_COUNT)
    if count is None:
        return None
    return Repeat(f"body {hashlib.blake2b(raw, digest_size=16).hexdigest()}", is_one=count != "0")
