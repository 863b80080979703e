"""HTTP bodies of any content: a broken answer is left, a broken request refused, and neither costs memory."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from asyncrl.errors import ServerError
from asyncrl.inference.client import ServerClient
from asyncrl.inference.errors import MalformedAnswer, RequestRefused, ServerUnavailable
from asyncrl.inference.local_engine import asgi
from asyncrl.inference.local_engine.asgi import Access, App, Exchange, Keys, Reply, Route, json_reply
from asyncrl.inference.local_engine.generate_body import BodyLimits, parse
from asyncrl.inference.local_engine.request import RequestRefused as BodyRefused
from asyncrl.inference.protocol import Sampling, parse_answer, parse_status
from tests.support.event_loop import in_event_loop

DEEP = b"[" * 100_000
SAMPLING = Sampling(max_new_tokens=8, temperature=1.0, top_p=1.0, top_k=-1, stop_token_ids=(2,), seed=7)


@contextmanager
def closing(server: asyncio.Server) -> Iterator[str]:
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def answering(reply: bytes) -> asyncio.Server:
    """A server that answers everything with these bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body)


@pytest.mark.parametrize("body", [DEEP, b"{", b"\xff\xfe", b"[]", b"3", b'{"output_ids": [1]}', b'{"meta_info": []}'])
@in_event_loop
async def test_an_answer_that_is_none_is_an_error_of_the_server(body: bytes) -> None:
    with closing(await answering(ok(body))) as url, pytest.raises(MalformedAnswer):
        await ServerClient(url, vocab_size=50, control_s=5.0).generate([1], SAMPLING, extra_key=None, deadline_s=5.0)


@pytest.mark.parametrize("body", [b'{"loads": 3}', b'{"loads": [3]}', b'{"loads": [{"num_running_reqs": "many"}]}'])
@in_event_loop
async def test_loads_that_are_none_are_an_error_of_the_server(body: bytes) -> None:
    with closing(await answering(ok(body))) as url, pytest.raises(MalformedAnswer, match="no loads"):
        await ServerClient(url, vocab_size=50, control_s=5.0).loads()


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 1000000000000",
        b"Content-Length: -1",
        b"Content-Length: many",
        b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFF",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n-5",
        b"X: " + b"y" * 70_000,
    ],
)
@in_event_loop
async def test_a_reply_takes_no_memory_for_what_it_only_claims(head: bytes) -> None:
    reply = b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n"
    with closing(await answering(reply)) as url, pytest.raises(ServerUnavailable):
        await ServerClient(url, vocab_size=50, control_s=5.0).model_info()


@pytest.mark.parametrize(
    "change",
    [
        {"output_ids": [True]},
        {"output_ids": [1.0]},
        {"output_ids": "7"},
        {"output_ids": [-1]},
        {"output_token_logprobs": [["x", 7, None]]},
        {"output_token_logprobs": [7]},
        {"output_token_logprobs": [[10**400, 7]]},
        {"weight_versions": [{"start": 0}]},
        {"weight_versions": [{"start": 0, "end": "1", "version": "1.0"}]},
        {"weight_versions": [{"start": 0, "end": 1.0, "version": "1.0"}]},
        {"weight_versions": 5},
        {"finish_reason": {"type": "abort", "status_code": "many"}},
        {"finish_reason": ["stop"]},
    ],
)
def test_an_answer_of_other_types_is_malformed_and_ends_no_worker(change: dict[str, Any]) -> None:
    meta = {"finish_reason": {"type": "stop"}, "output_token_logprobs": [[-0.5, 7, None]]}
    body = {"output_ids": [7], "meta_info": meta}
    assert parse_answer(body).token_ids == (7,)
    (body if "output_ids" in change else meta).update(change)
    with pytest.raises(ServerError):
        parse_answer(body)


@pytest.mark.parametrize("values", [None, {}, [0] * 5, [float("nan")] * 6, [float("inf")] * 6, [[0]] * 6])
def test_a_loaders_status_that_is_no_six_numbers_is_malformed(values: Any) -> None:
    with pytest.raises(MalformedAnswer, match="six numbers"):
        parse_status(values)


LIMITS = BodyLimits(50, 100, 8, None)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n": 10**9}, "one body may ask for 4096"),
        ({"top_k": 2**63}, "top_k must be"),
        ({"stop_token_ids": [2**64]}, "stop_token_ids must be in"),
        ({"temperature": 10**400}, "temperature is a number of more than 1e308"),
    ],
)
def test_a_number_of_few_bytes_makes_no_crowd_and_ends_no_engine(params: dict[str, Any], message: str) -> None:
    with pytest.raises(BodyRefused, match=message):
        parse({"input_ids": [1], "sampling_params": {"max_new_tokens": 4, **params}}, LIMITS)


async def echo(exchange: Exchange) -> Reply:
    return json_reply(exchange.json())


def call(body: list[bytes], headers: dict[bytes, bytes]) -> tuple[int, int]:
    """Status of a POST, and how many parts of its body were taken."""
    parts, sent = list(body), []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/echo", "query_string": b"", "headers": list(headers.items())}
    app: Callable[..., Awaitable[None]] = App([Route(("POST",), "/echo", echo, Access.OPEN)], Keys())
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], len(body) - len(parts)


def test_a_request_that_announces_too_much_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "MAX_BODY_BYTES", 10)
    assert call([b'{"a": 1}'], {b"content-length": b"8"}) == (200, 1)
    assert call([b"x" * 11], {b"content-length": b"11"}) == (413, 0)
    assert call([b"x" * 6] * 5, {}) == (413, 2), "nor is it read on when it never said how long it is"


def test_a_request_nested_without_end_is_refused() -> None:
    assert call([DEEP], {}) == (400, 1)
    assert issubclass(RequestRefused, ServerError)
