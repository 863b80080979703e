"""Answers in flight that are asked for as far as they are."""

import asyncio

import pytest

from asyncrl import waits
from asyncrl.inference.batching import MAX_TOKENS
from asyncrl.inference.board import FixedBoard
from asyncrl.inference.client import ServerClient
from asyncrl.inference.fleet import Fleet, FleetLimits, Generated, Session
from asyncrl.inference.protocol import Sampling
from tests.support.event_loop import in_event_loop
from tests.support.fake_sglang import VOCAB, FakeServer, running_fake


async def fleet_of(server: FakeServer) -> Fleet:
    fleet = Fleet(
        FixedBoard([server.url]),
        lambda url: ServerClient(url, vocab_size=VOCAB),
        FleetLimits(request_timeout_s=5.0, server_wait_s=0.2),
    )
    await fleet.refresh()
    return fleet


def asking(fleet: Fleet, session: Session, max_new_tokens: int = MAX_TOKENS + 1) -> asyncio.Task[Generated]:
    """A request; by default one that shares its request with nobody."""
    sampling = Sampling(max_new_tokens, temperature=1.0, top_p=1.0, top_k=-1, stop_token_ids=(2,), seed=7)
    return asyncio.create_task(fleet.generate([1, 5], sampling, session=session, may_start_on=lambda version: True))


async def running(server: FakeServer, count: int) -> None:
    await waits.until("test", lambda: len(server.running) == count or None, why=str, deadline_s=10.0, recheck_s=0.01)


@pytest.mark.parametrize("max_new_tokens", [8, MAX_TOKENS + 1])
@in_event_loop
async def test_a_cut_answer_comes_with_its_tokens_and_its_siblings_go_on(max_new_tokens: int) -> None:
    with running_fake(hold=True, answer_tokens=6) as server:
        fleet = await fleet_of(server)
        sessions = [Session() for _ in range(3)]
        tasks = [asking(fleet, session, max_new_tokens) for session in sessions]
        await running(server, 3)
        assert all(session.in_flight is not None for session in sessions)
        await fleet.cut(sessions[1])
        await running(server, 2)
        server.release()
        answers = await asyncio.gather(*tasks)
        assert [answer.finish_reason for answer in answers] == ["stop", "abort", "stop"]
        assert answers[1].token_ids == answers[0].token_ids[:3]
        assert [span.num_tokens for span in answers[1].spans] == [3]
        assert all(session.in_flight is None for session in sessions)
        (aborted,) = server.bodies("/abort_request")
        assert aborted["abort_all"] is False
        await fleet.close()


@in_event_loop
async def test_nothing_is_asked_for_where_nothing_is_in_flight() -> None:
    with running_fake() as server:
        fleet, session = await fleet_of(server), Session()
        await fleet.cut(session)
        await asking(fleet, session)
        await fleet.cut(session)
        assert server.bodies("/abort_request") == []
        await fleet.close()


@in_event_loop
async def test_a_server_that_knows_no_abort_answers_when_it_is_done() -> None:
    with running_fake(hold=True) as server:
        server.do_abort_request = None  # type: ignore[method-assign,assignment]  # another server than SGLang
        fleet, session = await fleet_of(server), Session()
        task = asking(fleet, session)
        await running(server, 1)
        await fleet.cut(session)
        server.release()
        assert (await task).finish_reason == "stop"
        await fleet.close()


@in_event_loop
async def test_a_request_that_is_cancelled_or_fails_is_no_longer_in_flight() -> None:
    with running_fake(hold=True) as server:
        fleet, cancelled, failing = await fleet_of(server), Session(), Session()
        tasks = [asking(fleet, session) for session in (cancelled, failing)]
        await running(server, 2)
        tasks[0].cancel()
        server.drop_all()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (cancelled.in_flight, failing.in_flight) == (None, None)
        await fleet.close()
