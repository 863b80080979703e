"""Requests at a server that left the fleet, and which server gets the next one."""

import asyncio

import pytest

from asyncrl.inference import member
from asyncrl.inference.choosing import Choosing
from asyncrl.inference.client import ServerClient
from asyncrl.inference.errors import ServerUnavailable
from asyncrl.inference.fleet import Session
from asyncrl.inference.member import Member
from tests.support.event_loop import in_event_loop
from tests.support.fake_sglang import VOCAB
from tests.unit.asyncrl.inference.test_fleet import V1, V2, Setting, ask, setting
from tests.unit.asyncrl.inference.test_fleet_asleep import in_flight
from weightsync.acks import Ack

__all__ = ["setting"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "LEFTOVERS_S", 0.02)
    monkeypatch.setattr(member, "PROBE_S", 0.2)


@in_event_loop
async def test_requests_at_a_server_that_left_and_hangs_are_asked_elsewhere_long_before_their_deadline(
    setting: Setting,
) -> None:
    hanging, other = setting.server(hold=True), setting.server()
    setting.board.write(hanging, V1, "hanging")
    fleet = await setting.fleet(request_timeout_s=600.0)
    asking = asyncio.create_task(ask(fleet, session=Session()))
    await in_flight(hanging, 1)
    hanging.do_v1_loads = lambda body: (503, {"error": "no answer"})  # type: ignore[method-assign]  # the one misbehaviour
    del setting.board.written["hanging"]
    setting.board.write(other, V1, "other")
    await fleet.refresh()
    with pytest.raises(ServerUnavailable, match="hanging left the fleet"):
        await asking
    assert (await ask(fleet)).server == "other"
    await fleet.close()


@in_event_loop
async def test_a_server_that_left_and_answers_finishes_what_it_has(setting: Setting) -> None:
    server = setting.server(hold=True)
    setting.board.write(server, V1)
    fleet = await setting.fleet()
    asking = asyncio.create_task(ask(fleet))
    await in_flight(server, 1)
    setting.board.written.clear()
    await fleet.refresh()
    while server.paths.count("/v1/loads") < 3:  # it is asked again and again
        await asyncio.wait([asking], timeout=0.01)
    assert not asking.done()
    server.release()
    assert (await asking).token_ids
    await fleet.close()


@in_event_loop
async def test_a_draining_server_gets_nothing_new_and_its_episodes_move(setting: Setting) -> None:
    leaving, staying = setting.server(), setting.server()
    setting.board.write(leaving, V1, "leaving")
    setting.board.write(staying, V1, "staying")
    fleet, session = await setting.fleet(), Session("leaving")
    assert (await ask(fleet, session=session)).server == "leaving"
    setting.board.write(leaving, V1, "leaving", state="draining")
    await fleet.refresh()
    assert (await ask(fleet, session=session)).server == "staying"
    assert session.server == "staying", "and stays there, for its prefix cache"
    assert "leaving: its state is draining" in fleet.why()
    await fleet.close()


def ack(**changes: object) -> Ack:
    usual: dict[str, object] = {"age_s": 0.0, "num_requests": None, **changes}
    return Ack(V1, 1, "first", "serving", "http://127.0.0.1:9", **usual)  # type: ignore[arg-type]  # by name


def a_member(name: str, **changes: object) -> Member:
    return Member(name, ack(**changes), ServerClient("http://127.0.0.1:9", vocab_size=VOCAB), lambda: None)


@in_event_loop
async def test_what_others_have_at_a_server_counts_and_ours_is_not_counted_twice() -> None:
    server = a_member("s", num_requests=5)
    assert server.load == 5
    server.in_flight_s(+2)
    assert server.load == 7
    server.acknowledged(ack(num_requests=5))
    assert server.load == 7, "the same sign of life says nothing new"
    server._measured_s -= 10  # a later one
    server.acknowledged(ack(num_requests=6))
    assert server.load == 6, "two of the six are ours"
    server._measured_s -= 10
    server.acknowledged(ack(num_requests=1))
    assert server.load == 2


@in_event_loop
async def test_workers_that_know_of_no_difference_do_not_all_choose_the_same_server() -> None:
    servers = [a_member(f"s{index}") for index in range(4)]
    firsts = [Choosing(turn).choose(servers, Session(), lambda version: True) for turn in range(8)]
    assert [server.name for server in firsts if server is not None] == ["s0", "s1", "s2", "s3"] * 2
    servers[1].in_flight_s(+1)
    chosen = Choosing(1).choose(servers, Session(), lambda version: True)
    assert chosen is not None
    assert chosen.name == "s2"


@pytest.mark.parametrize("kept", [True, False])
@in_event_loop
async def test_the_age_of_caches_is_counted_by_tokens_where_updates_keep_them(setting: Setting, kept: bool) -> None:
    server = setting.server()
    setting.board.write(server, V1)
    setting.board.published = [0, V1, V2]
    fleet = await setting.fleet(caches_outlive_updates=kept)
    meta = {
        "finish_reason": {"type": "stop", "matched": 2},
        "output_token_logprobs": [[-0.5, 7, None], [-0.5, 8, None], [-0.5, 2, None]],
        "weight_versions": [{"version": "1.1", "start": 0, "end": 1}, {"version": "1.2", "start": 1, "end": 3}],
        "cached_tokens": 1,
    }
    server.script.append((200, {"output_ids": [7, 8, 2], "meta_info": meta}))
    await ask(fleet)
    assert dict(fleet.kv.tokens) == ({0: 1, 1: 2} if kept else {0: 3})
    assert (fleet.kv.prompt, fleet.kv.reused) == (2, 1)
    await fleet.close()
