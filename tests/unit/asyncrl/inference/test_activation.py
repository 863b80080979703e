"""Between pause and continue: what was sent decides whether a server goes on after a failure; the reason is told."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from asyncrl.inference.activation import ActivationFailed, Held, Kv, Pausing, activate, inspect, prepare
from asyncrl.inference.client import ServerClient
from asyncrl.inference.errors import ServerUnavailable
from asyncrl.inference.protocol import Sampling
from tests.support.event_loop import in_event_loop
from tests.support.fake_receiver import FakeLog, FakeTicket
from tests.support.fake_sglang import VOCAB, FakeServer, running_fake

V1, V2 = 1 << 32 | 1, 1 << 32 | 2
TICKET = FakeTicket("delta", V1, V2, V2 + 1000)
HELD = Held(V1, V1 + 1000)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """Holds 1.1; a delta to 1.2 is staged."""
    with running_fake() as started:
        FakeLog(ticket=TICKET).loads_into(started, V1)
        yield started


def client_of(server: FakeServer) -> ServerClient:
    return ServerClient(server.url, vocab_size=VOCAB, control_s=5.0)


def pausing(kv: Kv = "recompute", deadline_s: float = 10.0) -> Pausing:
    return Pausing(kv=kv, num_ranks=1, deadline_s=deadline_s)


def refuses(server: FakeServer, route: str) -> None:
    """Answer 400 on one route."""
    setattr(server, "do" + route.replace("/", "_"), lambda body: (400, {"error": f"{route} says no"}))


@pytest.mark.parametrize("route", ["/pause_generation", "/begin_weight_update"])
@in_event_loop
async def test_a_server_that_was_sent_nothing_goes_on_and_the_reason_is_told(server: FakeServer, route: str) -> None:
    """B058: an activation that fails between the pause and the first word is no pause for ever."""
    refuses(server, route)
    client = client_of(server)
    with pytest.raises(ActivationFailed, match=f"{route} says no") as caught:
        await activate(client, TICKET, held=HELD, pausing=pausing())
    assert not caught.value.dirty
    assert "/update_weights_from_tensor" not in server.paths
    assert server.paths[-1] == "/continue_generation"
    assert server.paused is None
    await client.close()


@pytest.mark.parametrize(
    "route", ["/update_weights_from_tensor", "/end_weight_update", "/get_weights_by_name", "/update_weight_version"]
)
@in_event_loop
async def test_a_server_that_may_have_taken_words_stays_paused(server: FakeServer, route: str) -> None:
    """B057: whatever is refused after the words were sent, nothing samples on with weights that nobody confirmed."""
    refuses(server, route)
    client = client_of(server)
    with pytest.raises(ActivationFailed, match=f"{route} says no") as caught:
        await activate(client, TICKET, held=HELD, pausing=pausing())
    assert caught.value.dirty
    assert server.paused == "retract"
    assert "/continue_generation" not in server.paths
    assert server.label == "default", "B043: the version is stamped after its digest was compared, or not at all"
    await client.close()


@pytest.mark.parametrize("route", ["/pause_generation", "/begin_weight_update", "/update_weights_from_tensor"])
@in_event_loop
async def test_an_inspection_that_is_refused_is_a_failure_with_its_reason(server: FakeServer, route: str) -> None:
    refuses(server, route)
    client = client_of(server)
    with pytest.raises(ActivationFailed, match=f"{route} says no"):
        await inspect(client, pausing=pausing())
    await client.close()


@in_event_loop
async def test_a_request_in_flight_survives_an_update_that_empties_the_cache(server: FakeServer) -> None:
    """B054, B055: the server is paused, and its requests retracted, before the update that flushes what the old weights
    cached; the long answer goes on afterwards."""
    server.hold = True
    client = client_of(server)
    sampling = Sampling(8, 1.0, 1.0, -1, (2,), 7)
    asking = asyncio.create_task(client.generate([1], sampling, extra_key=None, deadline_s=20.0))
    while not server.running:
        await asyncio.to_thread(lambda: None)
    await activate(client, TICKET, held=HELD, pausing=pausing())
    assert server.bodies("/pause_generation") == [{"mode": "retract"}]
    assert server.paths.index("/pause_generation") < server.paths.index("/update_weights_from_tensor")
    assert [body["flush_cache"] for body in server.bodies("/update_weights_from_tensor")] == [True]
    assert "/flush_cache" not in server.paths, "a flush of its own is refused while requests wait"
    server.release()
    answer = await asking
    assert answer.finish_reason == "stop"
    assert len(answer.token_ids) == 5
    await client.close()


@in_event_loop
async def test_with_kv_abort_a_request_in_flight_is_answered_as_far_as_it_is(server: FakeServer) -> None:
    """Before the server stands still: what the scheduler has not handed out by then would be lost. Not by SGLang's own
    pause with abort, which hangs where the server was paused in place before."""
    server.hold = True
    client = client_of(server)
    sampling = Sampling(8, 1.0, 1.0, -1, (2,), 7)
    asking = asyncio.create_task(client.generate([1], sampling, extra_key=None, deadline_s=20.0))
    while not server.running:
        await asyncio.to_thread(lambda: None)
    await activate(client, TICKET, held=HELD, pausing=pausing("abort"))
    answer = await asking
    assert (answer.finish_reason, len(answer.token_ids)) == ("abort", 2)
    assert server.bodies("/pause_generation") == [{"mode": "retract"}]
    assert server.bodies("/abort_request") == [{"rid": "", "abort_all": True}]
    order = [server.paths.index(path) for path in ("/abort_request", "/pause_generation", "/begin_weight_update")]
    assert order == sorted(order)
    assert [body["flush_cache"] for body in server.bodies("/update_weights_from_tensor")] == [True]
    assert server.paused is None
    await client.close()


@in_event_loop
async def test_a_pause_has_a_deadline_and_its_name(server: FakeServer) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    client = client_of(server)
    client.load_staged = lambda *args, **kwargs: never()  # type: ignore[method-assign]  # a server that says nothing
    with pytest.raises(
        ServerUnavailable, match=r"paused for version 1\.2 for more than weightsync\.activate_deadline_s"
    ):
        await activate(client, TICKET, held=HELD, pausing=pausing(deadline_s=0.2))
    assert server.paused == "retract", "its weights are not known"
    await client.close()


@in_event_loop
async def test_a_host_asks_until_its_servers_loader_is_ready_and_not_for_ever(server: FakeServer) -> None:
    """Before the pause; a loader that has not run yet, or one of before, has nothing to prepare."""
    answers: list[tuple[int, object]] = [(200, [1]), (200, [1]), (200, [0])]
    asked: list[object] = []

    def answer(body: Any) -> tuple[int, object]:
        asked.append(body["name"])
        return answers[min(len(asked), len(answers)) - 1]

    client = client_of(server)
    server.do_get_weights_by_name = answer  # type: ignore[method-assign]  # this server prepares
    await prepare(client, TICKET, deadline_s=10.0)
    assert asked == ["@weightsync/prepare"] * 3
    assert server.paused is None
    for only in ((400, {"error": "no such name"}), (200, [1])):
        asked.clear()
        answers[:] = [only]
        await prepare(client, TICKET, deadline_s=0.0)
        assert len(asked) == 1
    await client.close()
