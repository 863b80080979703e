"""Bodies of requests have room, one by one and together."""

from contextlib import ExitStack

import pytest
from starlette.requests import Request

from asyncrl.rollout.gateway.conversation import ProtocolError
from asyncrl.rollout.gateway.exchange import Bodies, read_object
from tests.support.event_loop import in_event_loop


def request(body: bytes, *, says_length: bool = True) -> Request:
    parts = [{"type": "http.request", "body": part, "more_body": True} for part in (body[:3], body[3:])]
    parts.append({"type": "http.request", "body": b"", "more_body": False})
    headers = [(b"content-length", str(len(body)).encode())] if says_length else []

    async def receive() -> dict[str, object]:
        return parts.pop(0)

    return Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive)


def test_requests_in_flight_have_so_much_together() -> None:
    bodies = Bodies(100, 250)
    with ExitStack() as held:
        held.enter_context(bodies.held(request(b"x" * 90)))
        held.enter_context(bodies.held(request(b"x", says_length=False)))  # may be the longest
        with pytest.raises(ProtocolError, match=r"190 bytes of bodies, gateway\.max_bytes is 250") as refused:
            bodies.held(request(b"x" * 80)).__enter__()
        assert (refused.value.status, refused.value.retry_after_s) == (429, 1.0)
        with bodies.held(request(b"x" * 60)):
            pass
    with bodies.held(request(b"x" * 100)), bodies.held(request(b"x" * 100)):
        pass  # all of it was given back


@pytest.mark.parametrize(
    ("body", "status", "found"),
    [
        (b"{", 400, "not JSON"),
        (b"[" * 5000 + b"]" * 5000, 400, "JSON"),
        (b"[]", 400, "a JSON object"),
        (b"\xff\xfe", 400, "not JSON"),
        (b'{"a": "' + b"x" * 100 + b'"}', 413, "gateway.max_body_bytes = 64"),
    ],
)
@in_event_loop
async def test_a_body_that_cannot_be_read_is_refused(body: bytes, status: int, found: str) -> None:
    limit = 64 if status == 413 else 1 << 20
    for says_length in (True, False):
        with pytest.raises(ProtocolError) as refused:
            await read_object(request(body, says_length=says_length), limit)
        assert refused.value.status == status
        assert found in refused.value.message


@in_event_loop
async def test_half_of_a_surrogate_pair_becomes_a_character_that_can_be_encoded() -> None:
    """B014 of the public cases, at the door: a lone surrogate would fail later, in the tokenizer or on the wire."""
    _, body = await read_object(request(b'{"a": ["\\ud800", "\\ud83d\\ude00"]}'), 100)
    assert body == {"a": ["\ufffd", "\U0001f600"]}
