"""A notice that the machine will be taken away: by file, by a command, and what is no notice."""

import asyncio
import logging
import sys
from pathlib import Path

import pytest

from asyncrl import waits
from asyncrl.config.rollout import PreemptionConfig
from asyncrl.run.preemption import watch_for_notice
from tests.support.event_loop import in_event_loop

EVERY_S = 0.02


def program(text: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", text)


@in_event_loop
async def test_a_file_that_appears_is_a_notice(tmp_path: Path) -> None:
    notice, stop, hurry = tmp_path / "notice", asyncio.Event(), asyncio.Event()
    watching = asyncio.create_task(watch_for_notice(PreemptionConfig(file=notice, every_s=EVERY_S), stop, hurry))
    await asyncio.wait([watching], timeout=0.1)
    assert not stop.is_set()
    notice.touch()
    await asyncio.wait_for(watching, 10)
    assert stop.is_set()
    assert hurry.is_set()


@in_event_loop
async def test_a_command_that_exits_with_0_is_a_notice_and_with_another_code_none(tmp_path: Path) -> None:
    flag, asked = tmp_path / "flag", tmp_path / "asked"
    text = (
        f"import pathlib, sys; pathlib.Path({str(asked)!r}).touch(); sys.exit(not pathlib.Path({str(flag)!r}).exists())"
    )
    stop, hurry = asyncio.Event(), asyncio.Event()
    config = PreemptionConfig(command=program(text), every_s=EVERY_S, command_timeout_s=20.0)
    watching = asyncio.create_task(watch_for_notice(config, stop, hurry))
    await waits.until("test", lambda: asked.exists() or None, why=str, deadline_s=20.0, recheck_s=0.01)
    assert not stop.is_set()
    flag.touch()
    await asyncio.wait_for(watching, 20)
    assert hurry.is_set()


@pytest.mark.parametrize(
    ("command", "words"),
    [(("/nonexistent/program",), "cannot be run"), (program("import time; time.sleep(60)"), "took longer than")],
)
@in_event_loop
async def test_a_command_that_does_not_work_is_told_once_and_is_no_notice(
    command: tuple[str, ...], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    stop, hurry = asyncio.Event(), asyncio.Event()
    config = PreemptionConfig(command=command, every_s=EVERY_S, command_timeout_s=0.05)
    with caplog.at_level(logging.WARNING):
        watching = asyncio.create_task(watch_for_notice(config, stop, hurry))
        await waits.until("test", lambda: words in caplog.text or None, why=str, deadline_s=20.0, recheck_s=0.01)
        await asyncio.wait([watching], timeout=0.3)
    assert not stop.is_set()
    assert caplog.text.count(words) == 1
    stop.set()
    await asyncio.wait_for(watching, 10)


@in_event_loop
async def test_without_a_way_of_giving_notice_nothing_is_watched() -> None:
    await asyncio.wait_for(watch_for_notice(PreemptionConfig(), asyncio.Event(), asyncio.Event()), 5)
