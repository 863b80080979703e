"""What the first, second and third signal do, and a preemption notice."""

import os
import signal
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio
from asyncrl.run.signals import stop_event

async def main():
    hurry = asyncio.Event() if {has_hurry} else None
    stop = stop_event(at_once=lambda: print("at once", flush=True), hurry=hurry, heeds_preemption={heeds})
    print("ready", flush=True)
    await stop.wait()
    print("stop", flush=True)
    if hurry is not None:
        await hurry.wait()
        print("hurry", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def answers(
    has_hurry: bool, signals: list[signal.Signals], lines: list[str], *, heeds: bool = True
) -> tuple[list[str], int]:
    """What the program prints, sent the next signal after each of `lines`; and how it ends."""
    code = PROGRAM.format(has_hurry=has_hurry, heeds=heeds)
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    found = []
    try:
        todo = list(signals)
        for line in process.stdout:
            found.append(line.strip())
            if found[-1] in lines and todo:
                os.kill(process.pid, todo.pop(0))
        return found, process.wait(20)
    finally:
        process.kill()
        process.wait()


TERM, USR1 = signal.SIGTERM, signal.SIGUSR1


def test_the_second_signal_leaves_at_once() -> None:
    assert answers(False, [TERM, TERM], ["ready", "stop"]) == (["ready", "stop", "at once"], 128 + TERM)


def test_where_something_can_be_hurried_the_second_signal_does_that_and_the_third_leaves() -> None:
    found = answers(True, [TERM, TERM, TERM], ["ready", "stop", "hurry"])
    assert found == (["ready", "stop", "hurry", "at once"], 128 + TERM)


@pytest.mark.parametrize("has_hurry", [True, False])
def test_a_preemption_notice_stops_in_a_hurry_and_is_no_signal_before_the_first(has_hurry: bool) -> None:
    """A supervisor passes a notice on and asks its workers to stop, at the same moment: they stop in good order."""
    lines = ["stop\n", *(["hurry\n"] if has_hurry else [])]
    code = PROGRAM.format(has_hurry=has_hurry, heeds=True)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGSTOP)  # so that both are heard in one go, the notice first
        for number in (TERM, USR1, signal.SIGCONT):
            process.send_signal(number)
        assert [process.stdout.readline() for _ in lines] == lines
        process.send_signal(TERM)
        assert process.stdout.readline() == "at once\n"
        assert process.wait(20) == 128 + TERM


def test_those_that_others_still_need_do_not_heed_it() -> None:
    code = PROGRAM.format(has_hurry=False, heeds=False)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(USR1)
        process.send_signal(TERM)
        assert process.stdout.readline() == "stop\n"
        process.send_signal(TERM)
        assert process.wait(20) == 128 + TERM


def test_once_the_loop_is_closed_a_signal_ends_nothing() -> None:
    """The command is leaving, and what it holds is let go of after the loop."""
    code = """
import asyncio, sys
from asyncrl.run.signals import stop_event

async def main():
    stop_event()

asyncio.run(main())
print("closed", flush=True)
sys.stdin.readline()
print("let go")
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"closed\n"
        for number in (TERM, signal.SIGINT, TERM):
            process.send_signal(number)
        out, _ = process.communicate(b"\n", timeout=20)
        assert (out, process.returncode) == (b"let go\n", 0)


def test_sigterm_before_there_is_a_loop_unwinds_the_command() -> None:
    """B179: what it has started by then, its Redis for one, is let go of."""
    code = """
import sys
from asyncrl import cli

def run(*_):
    try:
        print("started", flush=True)
        sys.stdin.readline()
    finally:
        print("let go", flush=True)

cli.run = run
sys.exit(cli.main(["train"]))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        process.send_signal(TERM)
        assert process.stdout.readline() == b"let go\n"
        assert process.wait(20) == 128 + TERM
