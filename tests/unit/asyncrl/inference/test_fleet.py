"""Choosing servers by their acks, and placing answers in versions."""

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from asyncrl import waits
from asyncrl.errors import WaitTimeout
from asyncrl.inference.board import FixedBoard
from asyncrl.inference.client import ServerClient
from asyncrl.inference.errors import MalformedAnswer, RequestRefused, ServerUnavailable
from asyncrl.inference.fleet import WAIT, Fleet, FleetLimits, Generated, Session
from asyncrl.inference.protocol import Sampling
from buffer import Span
from buffer.versions import label, pack
from tests.support.event_loop import in_event_loop
from tests.support.fake_sglang import DROP, VOCAB, FakeServer, running_fake
from weightsync.acks import Ack

SAMPLING = Sampling(max_new_tokens=8, temperature=1.0, top_p=1.0, top_k=-1, stop_token_ids=(2,), seed=7)
V1, V2, V3 = (pack(1, number) for number in (1, 2, 3))


class TestBoard:
    """A board that the test writes on."""

    __test__ = False

    def __init__(self) -> None:
        self.written: dict[str, Ack] = {}
        self.published: list[int] = [0]
        self.changed = threading.Event()

    def write(self, server: FakeServer, version: int, name: str = "", **changes: Any) -> None:
        ack = Ack(version, version * 10, "first", "serving", server.url, 0.0)
        self.written[name or f"server-{len(self.written)}"] = replace(ack, **changes)
        server.label = label(version)
        self.changed.set()

    def acks(self) -> Mapping[str, Ack]:
        return dict(self.written)

    def versions(self) -> Sequence[int]:
        return self.published

    def digest_of(self, version: int) -> int | None:
        return version * 10 if version in self.published else None

    def wait(self, deadline_s: float) -> bool:
        woken = self.changed.wait(deadline_s)
        self.changed.clear()
        return woken


class Setting:
    """Running servers, a board, and fleets to make over it."""

    def __init__(self, stack: ExitStack) -> None:
        self.board = TestBoard()
        self._stack = stack

    def server(self, **settings: Any) -> FakeServer:
        return self._stack.enter_context(running_fake(**settings))

    async def fleet(self, **limits: Any) -> Fleet:
        fleet = Fleet(
            self.board,
            lambda url: ServerClient(url, vocab_size=VOCAB),
            FleetLimits(**{"request_timeout_s": 5.0, "server_wait_s": 0.2, **limits}),
        )
        await fleet.refresh()
        return fleet


@pytest.fixture
def setting() -> Iterator[Setting]:
    with ExitStack() as stack:
        yield Setting(stack)


async def ask(fleet: Fleet, *, at_least: int = 0, session: Session | None = None) -> Generated:
    return await fleet.generate(
        [1, 5], SAMPLING, session=session or Session(), may_start_on=lambda version: version >= at_least
    )


@in_event_loop
async def test_tokens_carry_the_version_and_the_digest_that_the_server_acknowledged(setting: Setting) -> None:
    server = setting.server()
    setting.board.write(server, V1)
    fleet = await setting.fleet()
    answer = await ask(fleet)
    assert answer.spans == (Span(V1, V1 * 10, len(answer.token_ids)),)
    assert answer.finish_reason == "stop"
    assert server.questions()[0]["extra_key"] == "1.1"
    await fleet.close()


@in_event_loop
async def test_requests_are_counted_by_how_many_their_server_had_at_once(setting: Setting) -> None:
    server = setting.server()
    setting.board.write(server, V1)
    fleet = await setting.fleet()
    alone = await ask(fleet)
    assert {largest: (one.requests, one.tokens) for largest, one in fleet.speeds.served.items()} == {
        1: (1, len(alone.token_ids))
    }
    assert fleet.speeds.served[1].seconds > 0
    assert 0.5 < fleet.speeds.served[1].at_once <= 1.0
    together = await asyncio.gather(*(ask(fleet) for _ in range(8)))
    requests = sum(one.requests for one in fleet.speeds.served.values())
    tokens = sum(one.tokens for one in fleet.speeds.served.values())
    assert (requests, tokens) == (9, len(alone.token_ids) + sum(len(answer.token_ids) for answer in together))
    assert max(fleet.speeds.served) > 1, "eight at once are not alone"
    await fleet.close()


@in_event_loop
async def test_only_a_server_at_or_past_the_claims_version_is_asked(setting: Setting) -> None:
    old, new = setting.server(), setting.server()
    setting.board.write(old, V1)
    setting.board.write(new, V2)
    fleet = await setting.fleet()
    for _ in range(4):
        assert (await ask(fleet, at_least=V2)).server == "server-1"
    with pytest.raises(
        WaitTimeout, match=r"server-0: version 1\.1 is older.*server-1: version 1\.2 is older"
    ) as caught:
        await ask(fleet, at_least=V3)
    assert caught.value.name == WAIT
    await fleet.close()


@in_event_loop
async def test_a_waiting_episode_starts_as_soon_as_a_server_is_ready_and_its_seconds_are_counted_once(
    setting: Setting,
) -> None:
    server = setting.server()
    setting.board.write(server, V1, "server-0")
    fleet, stop = await setting.fleet(server_wait_s=30.0), asyncio.Event()
    following = asyncio.create_task(fleet.run(stop))
    asking = [asyncio.create_task(ask(fleet, at_least=V2)) for _ in range(3)]
    await asyncio.wait(asking, timeout=0.05)
    assert [wait.name for wait in waits.active()].count(WAIT) == 1
    setting.board.write(server, V2, "server-0")
    assert [answer.spans[0].version for answer in await asyncio.gather(*asking)] == [V2] * 3
    assert sum(fleet.speeds.waited.calls.values()) == 3
    assert sum(fleet.speeds.waited.seconds.values()) > 0
    assert WAIT not in [wait.name for wait in waits.active()]
    stop.set()
    setting.board.changed.set()
    await following
    await fleet.close()


@pytest.mark.parametrize("state", ["updating", "asleep", "failed"])
@in_event_loop
async def test_a_server_that_is_not_serving_is_not_asked(setting: Setting, state: str) -> None:
    setting.board.write(setting.server(), V1, state=state)
    with pytest.raises(WaitTimeout, match=f"its state is {state}"):
        await ask(await setting.fleet())


@in_event_loop
async def test_without_any_server_the_reason_says_what_to_look_at(setting: Setting) -> None:
    with pytest.raises(WaitTimeout, match="is serve-rollout running"):
        await ask(await setting.fleet())


@in_event_loop
async def test_a_server_too_many_published_versions_behind_is_left_out(setting: Setting) -> None:
    behind, near = setting.server(), setting.server()
    setting.board.published = [0, V1, V2, V3]
    setting.board.write(behind, V1)
    setting.board.write(near, V2)
    fleet = await setting.fleet(max_version_skew=1)
    assert {(await ask(fleet)).server for _ in range(4)} == {"server-1"}
    assert "max_version_skew" in fleet.why()
    await fleet.close()


@in_event_loop
async def test_requests_go_to_the_server_with_the_fewest_in_flight_but_an_episode_stays_where_it_is(
    setting: Setting,
) -> None:
    servers = [setting.server(hold=True) for _ in range(2)]
    for server in servers:
        setting.board.write(server, V1)
    fleet, session = await setting.fleet(), Session()
    tasks = [asyncio.create_task(ask(fleet)) for _ in range(6)]
    tasks.append(asyncio.create_task(ask(fleet, session=session)))
    while sum(len(server.questions()) for server in servers) < 7:
        await asyncio.wait(tasks, timeout=0.01)
    assert sorted(len(server.questions()) for server in servers) == [3, 4]
    assert sum(fleet.num_in_flight().values()) == 7
    for server in servers:
        server.release()
    await asyncio.gather(*tasks)
    home = session.server
    assert {(await ask(fleet, session=session)).server for _ in range(4)} == {home}
    assert sum(fleet.num_in_flight().values()) == 0
    await fleet.close()


@in_event_loop
async def test_a_server_that_failed_is_left_alone_and_the_episode_goes_elsewhere(setting: Setting) -> None:
    first, second = setting.server(), setting.server()
    setting.board.write(first, V1)
    setting.board.write(second, V1)
    fleet, session = await setting.fleet(), Session("server-0")
    first.script.append(DROP)
    with pytest.raises(ServerUnavailable):
        await ask(fleet, session=session)
    assert session.server is None
    assert {(await ask(fleet)).server for _ in range(4)} == {"server-1"}
    assert "it failed 1 times" in fleet.why()
    setting.board.write(first, V1, "server-0", incarnation="second")
    await fleet.refresh()
    assert "it failed" not in fleet.why(), "a new life of the server is not blamed for the last one's death"
    await fleet.close()


@in_event_loop
async def test_the_only_server_is_asked_again_after_a_short_while(setting: Setting) -> None:
    server = setting.server()
    setting.board.write(server, V1)
    fleet = await setting.fleet(server_wait_s=10.0)
    server.script.append((503, {"error": "busy"}))
    with pytest.raises(ServerUnavailable):
        await ask(fleet)
    assert (await ask(fleet)).token_ids
    await fleet.close()


@in_event_loop
async def test_nobody_spends_an_attempt_on_a_dead_server_whose_last_word_is_still_believed(setting: Setting) -> None:
    with running_fake() as dying:
        setting.board.write(dying, V1, "server-0")
        fleet = await setting.fleet(server_wait_s=20.0)
        assert (await ask(fleet)).token_ids
    with pytest.raises(ServerUnavailable):
        await ask(fleet)
    asking = [asyncio.create_task(ask(fleet)) for _ in range(5)]
    _, waiting = await asyncio.wait(asking, timeout=1.0)
    assert len(waiting) == 5
    assert "does not answer" in fleet.why()
    setting.server(port=dying.port, label=label(V1))
    assert all(answer.token_ids for answer in await asyncio.gather(*asking))
    await fleet.close()


@in_event_loop
async def test_a_refused_request_does_not_blame_the_server(setting: Setting) -> None:
    server = setting.server()
    setting.board.write(server, V1)
    fleet = await setting.fleet()
    server.script.append((400, {"error": "too long"}))
    with pytest.raises(RequestRefused):
        await ask(fleet)
    assert (await ask(fleet)).server == "server-0"
    await fleet.close()


@in_event_loop
async def test_spans_of_an_answer_across_an_activation_have_both_digests(setting: Setting) -> None:
    """B214: tokens have the version that sampled them, whatever was known when the request was sent."""
    server = setting.server()
    setting.board.write(server, V1)
    setting.board.published = [0, V1, V2]
    fleet = await setting.fleet()
    spans = [{"version": "1.1", "start": 0, "end": 1}, {"version": "1.2", "start": 1, "end": 3}]
    meta = {
        "finish_reason": {"type": "stop", "matched": 2},
        "output_token_logprobs": [[-0.5, 7, None], [-0.5, 8, None], [-0.5, 2, None]],
        "weight_version": "1.2",
        "weight_versions": spans,
    }
    server.script.append((200, {"output_ids": [7, 8, 2], "meta_info": meta}))
    assert (await ask(fleet)).spans == (Span(V1, V1 * 10, 1), Span(V2, V2 * 10, 2))
    await fleet.close()


@in_event_loop
async def test_a_server_that_names_one_version_is_held_to_the_one_it_had_confirmed_before(setting: Setting) -> None:
    server = setting.server(spans=False)
    setting.board.write(server, V1)
    fleet = await setting.fleet()
    server.label = label(V2)
    answer = await ask(fleet)
    assert answer.spans == (Span(V1, V1 * 10, len(answer.token_ids)),)
    await fleet.close()


@pytest.mark.parametrize("spans", [False, True])
@in_event_loop
async def test_a_server_that_is_behind_its_own_word_is_believed_by_its_answers(setting: Setting, spans: bool) -> None:
    """B213: tokens have the older version that the answer names, not the acknowledged one."""
    server = setting.server(spans=spans)
    setting.board.write(server, V2)
    setting.board.published = [0, V1, V2]
    fleet = await setting.fleet()
    server.label = label(V1)
    answer = await ask(fleet)
    assert answer.spans == (Span(V1, V1 * 10, len(answer.token_ids)),)
    await fleet.close()


@in_event_loop
async def test_an_answer_that_names_no_version_has_the_one_that_was_acknowledged(setting: Setting) -> None:
    server = setting.server()
    setting.board.write(server, V1)
    fleet = await setting.fleet()
    meta = {"finish_reason": {"type": "abort"}, "output_token_logprobs": [[-0.5, 7, None]]}
    server.script.append((200, {"output_ids": [7], "meta_info": meta}))
    assert (await ask(fleet)).spans == (Span(V1, V1 * 10, 1),)
    await fleet.close()


@in_event_loop
async def test_default_means_the_model_directory_only_if_the_ack_says_so(setting: Setting) -> None:
    server = setting.server()
    setting.board.write(server, 0, digest=99)
    server.label = "default"
    fleet = await setting.fleet()
    assert {(span.version, span.digest) for span in (await ask(fleet)).spans} == {(0, 99)}
    setting.board.write(server, V1, "server-0")
    server.label = "default"
    await fleet.refresh()
    with pytest.raises(MalformedAnswer, match="nobody knows the weights"):
        await ask(fleet)
    await fleet.close()


@in_event_loop
async def test_a_version_that_nobody_published_is_refused(setting: Setting) -> None:
    server = setting.server()
    setting.board.write(server, V1)
    server.label = "9.9"
    fleet = await setting.fleet()
    with pytest.raises(MalformedAnswer) as caught:
        await ask(fleet)
    assert caught.value.reason == "unknown_version"
    await fleet.close()


@in_event_loop
async def test_servers_that_nobody_updates_need_no_log(setting: Setting) -> None:
    server = setting.server()
    fleet = Fleet(
        FixedBoard([server.url], digest=5), lambda url: ServerClient(url, vocab_size=VOCAB), FleetLimits(5.0, 0.2)
    )
    await fleet.refresh()
    assert {(span.version, span.digest) for span in (await ask(fleet)).spans} == {(0, 5)}
    await fleet.close()
