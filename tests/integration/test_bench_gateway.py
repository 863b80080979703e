"""The benchmark of the gateway runs small, finds what it looks for, and would notice sessions that were mixed up."""

import time

import pytest

from scripts.benches.rollout_cases import gateway
from scripts.benches.rollout_cases.gateway_load import Harness, Load, Outcome, drive, percentile
from tests.support.event_loop import in_event_loop


def test_its_figures_are_there_and_no_session_is_mixed_up() -> None:
    figures = gateway.measure(num_sessions=8, requests_per_s=40.0, duration_s=0.5, warm_up_s=0.1)
    assert {name: figures[name] for name in ("gateway_mixed_up", "gateway_forks")} == {
        "gateway_mixed_up": 0,
        "gateway_forks": 0,
    }
    assert 0 < figures["gateway_p50_ms_8"] <= figures["gateway_p99_ms_8"] <= figures["gateway_max_ms_8"]
    assert figures["gateway_cpu_ms_per_request"] > 0
    assert 0 < figures["gateway_control_p50_ms"] <= figures["gateway_control_p99_ms"]


def test_a_trajectory_with_a_foreign_mark_or_another_answer_is_not_its_own() -> None:
    row = {"text": "q #s1.0 goes on|a s1.0 goes on|", "sampled": "s1.0 goes on|"}
    expected = {"s1": "s1.0 goes on|", "s2": "s2.0 goes on|"}
    assert gateway._is_own({"rows": [row]}, dict(expected))
    assert not gateway._is_own({"rows": [{**row, "text": row["text"] + "s2.0"}]}, dict(expected))
    assert not gateway._is_own({"rows": [{**row, "sampled": "s1.1 goes on|"}]}, dict(expected))
    assert not gateway._is_own({"rows": [row]}, {"s2": "s2.0 goes on|"}), "a session has one trajectory"


@pytest.mark.parametrize("poisson", [True, False])
def test_requests_are_due_at_the_rate_whatever_becomes_of_them(poisson: bool) -> None:
    due_s = Load(200.0, 20.0, seed=3, poisson=poisson).due_s()
    assert due_s == sorted(due_s)
    assert len(due_s) == pytest.approx(4000, rel=0.06)
    assert due_s == Load(200.0, 20.0, seed=3, poisson=poisson).due_s()


class Blocking(Harness):
    """A session whose turns stop the whole generator for a while."""

    def __init__(self, blocked_s: float) -> None:
        super().__init__(0, "", "s0")
        self._blocked_s = blocked_s

    async def turn(self, outcome: Outcome) -> int:
        begun_s = time.perf_counter()
        while time.perf_counter() < begun_s + self._blocked_s:
            pass
        return 4


@in_event_loop
async def test_what_an_answer_is_late_by_counts_from_when_it_was_due() -> None:
    outcome = await drive([Blocking(0.02), Blocking(0.02)], Load(1000.0, 0.0015, poisson=False))
    (first, _), (second, _) = outcome.answered
    assert first >= 0.02
    assert second >= 0.04 - 0.001, "it was due a millisecond after the first, and was sent when that was answered"
    assert outcome.max_late_s >= 0.02 - 0.001
    assert outcome.overheads_s(100.0) == [seconds - 0.04 for seconds, _ in outcome.answered]


@in_event_loop
async def test_requests_that_no_session_is_idle_for_are_counted() -> None:
    assert (await drive([], Load(1000.0, 0.01, poisson=False))).num_skipped == 10


def test_a_percentile_is_a_value_that_was_seen() -> None:
    assert [percentile(range(1, 101), share) for share in (0.5, 0.99, 1.0)] == [51, 100, 100]
    assert percentile([3.0], 0.99) == 3.0
