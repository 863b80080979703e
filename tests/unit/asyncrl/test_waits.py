"""Waits: named, reasoned, woken by events, ended by a deadline."""

import asyncio
import threading

import pytest

from asyncrl import waits
from asyncrl.errors import WaitTimeout


def test_a_result_that_is_there_costs_no_wait() -> None:
    assert asyncio.run(waits.until("unused wait", lambda: 7, why=lambda: "", deadline_s=0.0)) == 7
    assert "unused wait" not in waits.seconds()


def test_a_wait_ends_when_the_event_wakes_it_and_counts_its_seconds() -> None:
    ready = threading.Event()
    seen: list[str] = []

    def attempt() -> str | None:
        return "group" if ready.is_set() else None

    def wake(left_s: float) -> None:
        seen.extend(wait.name for wait in waits.active())
        ready.set()

    got = asyncio.run(waits.until("worker waits in a test", attempt, why=lambda: "not yet", wake=wake, deadline_s=30.0))
    assert got == "group"
    assert seen == ["worker waits in a test"]
    assert waits.seconds()["worker waits in a test"] >= 0
    assert waits.active() == []


def test_the_reason_that_is_shown_is_that_of_now() -> None:
    missing = ["8 groups"]
    with waits.timed("trainer waits in a test", lambda: missing[0]):
        missing[0] = "3 groups"
        assert [wait.why for wait in waits.active()] == ["3 groups"]


def test_a_passed_deadline_names_the_wait_both_numbers_and_the_reason() -> None:
    with pytest.raises(WaitTimeout) as caught:
        asyncio.run(
            waits.until(
                "trainer waits for a test", lambda: None, why=lambda: "need 8, have 3", deadline_s=0.02, recheck_s=0.01
            )
        )
    assert str(caught.value).startswith("trainer waits for a test: ")
    assert "deadline 0.0 s. need 8, have 3" in str(caught.value)
    assert caught.value.exit_code == 75


def test_an_exception_of_the_attempt_ends_the_wait() -> None:
    def attempt() -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError):
        asyncio.run(waits.until("broken wait", attempt, why=lambda: "", deadline_s=5.0))
    assert waits.active() == []


def test_blocking_calls_run_in_a_thread_and_are_counted() -> None:
    names: list[str] = []

    def call(value: int) -> int:
        names.append(threading.current_thread().name)
        return value * 2

    assert asyncio.run(waits.blocking("test call", call, 21)) == 42
    assert names[0].startswith("asyncrl-wait")
    assert "test call" in waits.seconds()
