"""A new version reaches one server while another is busy: nobody waits for the slowest answer."""

import asyncio
from contextlib import ExitStack

from tests.support.event_loop import in_event_loop
from tests.unit.asyncrl.inference.test_fleet import V1, V2, Setting, ask


@in_event_loop
async def test_a_free_server_starts_the_next_answer_while_a_long_one_goes_on_elsewhere() -> None:
    """B041: two servers, one long answer, a publish: the next answer starts on the free server at once."""
    with ExitStack() as stack:
        setting = Setting(stack)
        busy, free = setting.server(), setting.server()
        busy.script.append("hold")
        setting.board.published += [V1, V2]
        setting.board.write(busy, V1, "busy")
        fleet = await setting.fleet()
        long = asyncio.create_task(ask(fleet))
        while not busy.questions():
            await asyncio.wait([long], timeout=0.01)
        setting.board.write(free, V2, "free")
        await fleet.refresh()
        answer = await ask(fleet, at_least=V2)
        assert answer.spans[0].version == V2
        assert not long.done()
        busy.release()
        assert (await long).spans[0].version == V1
        await fleet.close()
