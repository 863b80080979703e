"""The run at a glance: what it says of admission is what a worker would hear, and looking changes nothing."""

import json
from collections.abc import Iterator

import pytest

from buffer import Claim, NotAdmitted, StalenessConfig
from tests.support.buffer_run import BufferRun
from tests.support.groups import group_for


@pytest.fixture
def run() -> Iterator[BufferRun]:
    run = BufferRun(None)
    yield run
    run.close()


def closed(run: BufferRun) -> tuple[str, ...]:
    """What status says; that it begins with what the next reserve hears is checked each time."""
    said = run.buffer.status().closed
    answer = run.buffer.reserve("asks")
    if isinstance(answer, Claim):
        run.buffer.abandon(answer)
        assert said == ()
    else:
        assert isinstance(answer, NotAdmitted)
        assert said[0] == answer.reason
    return said


def test_every_reason_for_closed_admission_is_the_one_that_a_reserve_is_refused_for(run: BufferRun) -> None:
    assert closed(run) == ("no_trainer",)
    run.recover(per_version=2)
    assert closed(run) == ()
    run.claims()
    assert closed(run) == ("window",)
    run.buffer.pause()
    run.buffer.stop()
    assert closed(run) == ("stopped", "paused", "window")
    run.buffer.resume()
    assert closed(run) == ("window",)


def test_a_full_budget_closes_admission_for_new_prompts_and_not_for_waiting_ones(run: BufferRun) -> None:
    run.set(max_bytes=250_000, max_group_bytes=100_000)
    run.recover(limit=5, per_version=2)
    held = run.claims()
    assert len(held) == 2
    assert closed(run) == ("bytes",)
    run.buffer.abandon(held[0])
    assert closed(run) == ()


def test_claims_are_listed_oldest_first_with_their_workers_and_what_they_have_sampled(run: BufferRun) -> None:
    run.recover(limit=5, per_version=2)
    first = run.claim("slow")
    run.buffer.renew(first, run.version(0), num_sampled=7)
    run.passes(30)
    run.claim("quick")
    run.claim("quick")
    run.passes(5)
    status = run.buffer.status(now_ms=run.now_ms)
    assert [(c.ordinal, c.worker, c.age_s, c.left_s, c.oldest, c.num_sampled) for c in status.claims] == [
        (0, "slow", 35.0, 25.0, "1.0", 7),
        (1, "quick", 5.0, 55.0, None, 0),
        (2, "quick", 5.0, 55.0, None, 0),
    ]
    assert status.workers == {"quick": 2, "slow": 1}
    assert (status.version, status.limit, status.groups_per_version, status.window) == ("1.0", 5, 2, 12)
    assert (status.num_open, status.num_taken) == (3, 0)
    assert status.promised_bytes == 3 * run.config.max_group_bytes


def test_deaths_are_counted_by_reason_and_bytes_by_what_holds_them(run: BufferRun) -> None:
    run.set(max_attempts=1)
    run.recover(per_version=3)
    run.make()
    for reason in ("tool_failed", "tool_failed"):
        run.buffer.fail(run.claim(), reason, "broken")
    status = run.buffer.status()
    assert status.deaths == {"tool_failed": 2}
    assert status.counts["dead"] == 2
    assert status.resident_bytes == run.buffer.audit().resident_bytes > 0
    assert status.dead_bytes == 0
    plain = json.loads(json.dumps(status.to_json()))
    assert plain["deaths"] == {"tool_failed": 2}
    assert (plain["tokens"]["sampled"], plain["tokens"]["held"]) == (6, 6)


def test_looking_changes_nothing(run: BufferRun) -> None:
    run.recover(per_version=2)
    run.make(2)
    run.lease()
    before = run.buffer._store.books()
    run.buffer.status()
    run.buffer.groups()
    assert run.buffer._store.books() == before


def test_groups_are_shown_with_their_state_age_and_lag_and_can_be_fetched(run: BufferRun) -> None:
    run.set(staleness=StalenessConfig(policy="drop"))
    run.recover(limit=2, per_version=2)
    claims = run.make(3)
    run.train()
    run.passes(10)
    shown = run.buffer.groups(now_ms=run.now_ms)
    assert [(one.state, one.entry.ordinal, one.entry.lag, one.entry.age_s) for one in shown] == [
        ("leased", 0, 1, 10.0),
        ("leased", 1, 1, 10.0),
        ("ready", 2, 1, 10.0),
    ]
    assert [one.entry.ordinal for one in run.buffer.groups("ready")] == [2]
    assert run.buffer.fetch(shown[2].entry) == group_for(claims[2], run.version(0))
