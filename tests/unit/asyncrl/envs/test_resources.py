"""What a worker's episodes share: made once, closed once, whoever asks at the same time and whatever fails."""

import asyncio
import logging

import pytest

from asyncrl.envs.resources import Resources


class Thing:
    def __init__(self, fails: bool = False) -> None:
        self.closed, self.fails = 0, fails

    async def close(self) -> None:
        self.closed += 1
        if self.fails:
            raise OSError("busy")


def test_many_who_ask_at_once_get_the_one_that_was_made() -> None:
    async def check() -> None:
        resources, made = Resources(), []

        async def make() -> Thing:
            await asyncio.sleep(0)
            made.append(Thing())
            return made[-1]

        found = await asyncio.gather(*(resources.get("bridge", make) for _ in range(50)))
        assert len(made) == 1
        assert set(found) == {made[0]}
        await resources.close()
        await resources.close()
        assert made[0].closed == 1

    asyncio.run(check())


def test_what_could_not_be_made_is_tried_again_and_what_broke_is_made_anew() -> None:
    async def check() -> None:
        resources, things = Resources(), [Thing(), Thing()]
        waiting = iter([None, *things])

        async def make() -> Thing:
            thing = next(waiting)
            if thing is None:
                raise OSError("not yet")
            return thing

        with pytest.raises(OSError, match="not yet"):
            await resources.get("bridge", make)
        first = await resources.get("bridge", make)
        await asyncio.gather(resources.drop("bridge", first), resources.drop("bridge", first))
        assert await resources.get("bridge", make) is things[1]
        await resources.drop("bridge", first)
        await resources.close()
        assert [thing.closed for thing in things] == [1, 1]

    asyncio.run(check())


def test_one_that_fails_to_close_keeps_no_other_open(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> list[Thing]:
        resources, things = Resources(), [Thing(), Thing(fails=True), Thing()]
        for number, thing in enumerate(things):

            async def make(thing: Thing = thing) -> Thing:
                return thing

            await resources.get(str(number), make)
        with caplog.at_level(logging.WARNING):
            await resources.close()
        return things

    assert [thing.closed for thing in asyncio.run(check())] == [1, 1, 1]
    assert "1 was not closed" in caplog.text


def test_nothing_is_handed_out_or_left_open_once_they_are_closed() -> None:
    async def check() -> None:
        resources, thing, is_making, may_go_on = Resources(), Thing(), asyncio.Event(), asyncio.Event()

        async def make() -> Thing:
            is_making.set()
            await may_go_on.wait()
            return thing

        asking = asyncio.create_task(resources.get("bridge", make))
        await is_making.wait()
        await resources.close()
        may_go_on.set()
        with pytest.raises(RuntimeError, match="while the worker's resources were closed"):
            await asking
        assert thing.closed == 1
        with pytest.raises(RuntimeError, match="after the worker's resources were closed"):
            await resources.get("other", make)

    asyncio.run(check())
