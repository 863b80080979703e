"""Requests that wait at a full server go to one that comes with room, and no others do."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl import waits
from asyncrl.inference.batching import MAX_TOKENS
from asyncrl.inference.fleet import Fleet, Generated, Session
from asyncrl.inference.protocol import Sampling
from asyncrl.inference.spreading import to_move
from tests.support.event_loop import in_event_loop
from tests.support.fake_sglang import FakeServer
from tests.unit.asyncrl.inference.test_fleet import V1, Setting, setting

__all__ = ["setting"]

ROWS = 2


@given(st.dictionaries(st.sampled_from("abcde"), st.integers(0, 30), max_size=5), st.integers(1, 10))
def test_what_waits_fills_the_free_rows_and_no_more(in_flight: dict[str, int], rows: int) -> None:
    moved = to_move(in_flight, rows)
    assert all(num > 0 and in_flight[name] - num >= rows for name, num in moved.items()), "who has a row keeps it"
    room = sum(max(0, rows - num) for num in in_flight.values())
    waiting = sum(max(0, num - rows) for num in in_flight.values())
    assert sum(moved.values()) == min(room, waiting)
    left = {name: num - moved.get(name, 0) for name, num in in_flight.items()}
    assert all(left[name] >= left[other] - 1 for name in moved for other in in_flight), "off the longest queues"


def asking(fleet: Fleet, session: Session, max_new_tokens: int = MAX_TOKENS + 1) -> asyncio.Task[Generated]:
    sampling = Sampling(max_new_tokens, temperature=1.0, top_p=1.0, top_k=-1, stop_token_ids=(2,), seed=7)
    return asyncio.create_task(fleet.generate([1, 5], sampling, session=session, may_start_on=lambda version: True))


async def running(server: FakeServer, count: int) -> None:
    await waits.until("test", lambda: len(server.running) == count or None, why=str, deadline_s=10.0, recheck_s=0.01)


@in_event_loop
async def test_the_newest_of_a_queue_are_asked_at_the_server_that_woke(setting: Setting) -> None:
    full, lent = setting.server(hold=True), setting.server(hold=True)
    setting.board.write(full, V1, "full")
    setting.board.write(lent, V1, "lent", state="asleep")
    fleet = await setting.fleet(rows=ROWS)
    sessions = [Session() for _ in range(6)]
    tasks = [asking(fleet, session) for session in sessions]
    await running(full, 6)
    kept = Session(only="full")
    tasks.append(asking(fleet, kept))
    await running(full, 7)

    setting.board.write(lent, V1, "lent")
    await fleet.refresh()
    await running(full, 5)
    answers = await asyncio.gather(*tasks[4:6])
    assert [answer.finish_reason for answer in answers] == ["abort", "abort"]
    assert [session.server for session in sessions] == ["full"] * 4 + [None] * 2
    assert kept.server == "full", "it may go nowhere else"
    again = [asking(fleet, session) for session in sessions[4:]]
    await running(lent, 2)
    await fleet.refresh()
    assert fleet.num_in_flight() == {"full": 5, "lent": 2}
    for server in (full, lent):
        server.release()
    await asyncio.gather(*tasks[:4], *again, tasks[6])
    await fleet.close()


@pytest.mark.parametrize(("rows", "max_new_tokens"), [(None, MAX_TOKENS + 1), (8, MAX_TOKENS + 1), (2, 8)])
@in_event_loop
async def test_nothing_moves_where_nothing_waits_or_answers_are_short(
    rows: int | None, max_new_tokens: int, setting: Setting
) -> None:
    full, lent = setting.server(hold=True), setting.server()
    setting.board.write(full, V1, "full")
    fleet = await setting.fleet(rows=rows)
    tasks = [asking(fleet, Session(), max_new_tokens) for _ in range(4)]
    await running(full, 4)
    setting.board.write(lent, V1, "lent")
    await fleet.refresh()
    full.release()
    answers = await asyncio.gather(*tasks)
    assert [answer.finish_reason for answer in answers] == ["stop"] * 4
    assert full.bodies("/abort_request") == []
    await fleet.close()
