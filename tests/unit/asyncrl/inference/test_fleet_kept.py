"""A server that is kept at a version: who may be sent to it, and who goes elsewhere."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from asyncrl.errors import WaitTimeout
from asyncrl.inference.fleet import Fleet, Generated, Session
from tests.support.event_loop import in_event_loop
from tests.unit.asyncrl.inference.test_fleet import SAMPLING, V1, V2, V3, Setting


@pytest.fixture
def setting() -> Iterator[Setting]:
    with ExitStack() as stack:
        made = Setting(stack)
        for version in (V3, V1):
            made.board.write(made.server(), version)
        yield made


async def ask(fleet: Fleet, *, only: str | None = None, at: int | None = None) -> Generated:
    return await fleet.generate(
        [1, 5], SAMPLING, session=Session(only=only), may_start_on=lambda held: at is None or held == at
    )


@in_event_loop
async def test_a_request_for_one_server_goes_there_or_waits_and_says_why(setting: Setting) -> None:
    fleet = await setting.fleet(max_version_skew=0)
    setting.board.published = [V1, V2, V3]
    await fleet.refresh()
    answers = [await ask(fleet, only="server-1", at=V1) for _ in range(3)]
    assert {(answer.server, span.version) for answer in answers for span in answer.spans} == {("server-1", V1)}
    with pytest.raises(
        WaitTimeout,
        match=r"server-0: these requests are for server-1 alone; server-1: version 1\.1 is not the one that",
    ):
        await ask(fleet, only="server-1", at=V2)
    await fleet.close()


@in_event_loop
async def test_a_server_that_is_behind_on_purpose_is_no_place_for_others(setting: Setting) -> None:
    fleet = await setting.fleet(max_version_skew=0)
    setting.board.published = [V1, V2, V3]
    await fleet.refresh()
    assert {(await ask(fleet)).server for _ in range(4)} == {"server-0"}
    await fleet.close()


@in_event_loop
async def test_others_spare_it_as_long_as_they_have_another(setting: Setting) -> None:
    fleet = await setting.fleet()
    session = Session()

    async def answered_by() -> str:
        answer = await fleet.generate([1, 5], SAMPLING, session=session, may_start_on=lambda held: True)
        return answer.server

    fleet.spared = "server-0"
    assert [await answered_by() for _ in range(3)] == ["server-1"] * 3
    fleet.spared = "server-1"
    assert await answered_by() == "server-0", "also of an episode that was there"
    del setting.board.written["server-0"]
    await fleet.refresh()
    assert await answered_by() == "server-1", "rather than wait"
    fleet.spared = None
    assert fleet.num_servers == 1
    await fleet.close()
