"""The table of scorers: counts of several processes add up, travel with the facts, and are shown with the failures."""

from pathlib import Path

import pytest

from asyncrl.report import rollout_facts, scorers
from asyncrl.report.rollout_facts import SCORERS
from asyncrl.report.scorers import ScorerCalls


def calls(*seconds: float, failed: int = 0, cached: int = 0) -> ScorerCalls:
    one = ScorerCalls(num_cached=cached)
    for spent in seconds:
        one.add("scored", spent)
    for number in range(failed):
        one.add("timeout", 30.0, f"late {number}")
    return one


def test_counts_of_several_workers_add_up_and_survive_the_run(tmp_path: Path) -> None:
    reports = {
        "worker-0": {SCORERS: scorers.as_fact({"judge": calls(0.1, 0.2, failed=1), "table": calls(0.0)})},
        "worker-1": {SCORERS: scorers.as_fact({"judge": calls(0.4, cached=5)})},
        "host-0": {"weights": 1.0},
    }
    rollout_facts.write(tmp_path, rollout_facts.of_reports(reports))
    found = rollout_facts.read(tmp_path).scorers
    assert found["judge"].outcomes == {"scored": 3, "timeout": 1}
    assert (found["judge"].num_failed, found["judge"].num_cached, found["judge"].last_error) == (1, 5, "late 0")
    assert found["table"].num_calls == 1


def test_a_report_that_is_no_table_costs_that_report_alone(tmp_path: Path) -> None:
    reports = {"bad": {SCORERS: '{"judge": 3}'}, "good": {SCORERS: scorers.as_fact({"judge": calls(0.1)})}}
    assert rollout_facts.of_reports(reports).scorers["judge"].num_calls == 1
    (tmp_path / "rollout").mkdir()
    (tmp_path / "rollout" / "facts.json").write_text('{"waits_s": {}, "speeds": {}, "scorers": {"judge": {}}}')
    assert rollout_facts.read(tmp_path).scorers == {}


def test_times_are_those_that_half_and_nearly_all_calls_kept_to() -> None:
    one = calls(*[0.010] * 98, 3.0, 3.0)
    half, nearly_all = one.quantile_s(0.5), one.quantile_s(0.99)
    assert half == pytest.approx(0.012)
    assert nearly_all == pytest.approx(3.072)
    assert ScorerCalls().quantile_s(0.5) is None


def test_the_lines_for_people_say_what_failed_and_why() -> None:
    summary = scorers.summary_of({"judge": calls(0.1, failed=2, cached=7), "idle": ScorerCalls()})
    lines = dict(scorers.rows_of(summary))
    assert lines["scorer idle"] == "no calls"
    assert lines["scorer judge"].startswith("3 calls, half within ")
    assert lines["scorer judge"].endswith(", 7 from the cache; 2 FAILED (2 timeout): late 1")
