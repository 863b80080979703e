"""Turns are found by their path at once; whatever is no turn is the router's."""

from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from asyncrl.rollout.gateway.turn_dispatch import TurnDispatch
from tests.support.event_loop import in_event_loop


async def turn(request: Request) -> Response:
    return PlainTextResponse(f"turn of {request.path_params.get('session')}")


async def others(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("others")(scope, receive, send)


@pytest.mark.parametrize(
    ("method", "path", "answer"),
    [
        ("POST", "/v1/messages", "turn of None"),
        ("POST", "/s/as-7._x/v1/messages", "turn of as-7._x"),
        ("GET", "/v1/messages", "others"),
        ("POST", "/v1/messages/count_tokens", "others"),
        ("POST", "/v1/messages/", "others"),
        ("POST", "/s//v1/messages", "others"),
        ("POST", "/s/a/b/v1/messages", "others"),
        ("POST", "/s/a", "others"),
        ("POST", "/sessions", "others"),
    ],
)
@in_event_loop
async def test_a_turn_is_a_post_to_a_protocols_path_with_or_without_a_session(
    method: str, path: str, answer: str
) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nothing is read here")

    scope = {"type": "http", "method": method, "path": path, "headers": []}
    await TurnDispatch({"/v1/messages": turn}, others)(scope, receive, send)
    assert sent[-1]["body"] == answer.encode()
