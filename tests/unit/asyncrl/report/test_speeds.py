"""Speeds of the rollout side: counts of several processes add up, survive JSON, and reach the run directory."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.metrics.console import FOR_THE_SUMMARY
from asyncrl.report import rollout_facts
from asyncrl.report.speeds import Durations, Served, Speeds, count

REQUESTS = st.lists(
    st.builds(
        Served,
        st.just(1),
        st.integers(0, 10_000),
        st.floats(1e-3, 1e3),
        st.floats(0.5, 300),
    ),
    max_size=20,
)


def speeds(seconds: list[float], requests: list[Served]) -> Speeds:
    found = Speeds()
    for one in seconds:
        found.environment.add(one)
        found.waited.add(2 * one)
    for request in requests:
        count(found.served, request)
    return found


@given(st.lists(st.floats(0, 100), max_size=20), REQUESTS)
def test_what_went_through_json_is_what_it_was(seconds: list[float], requests: list[Served]) -> None:
    before = speeds(seconds, requests)
    before.host({"activations": 2.0, "pause_s": 0.5, "state": "serving"})
    assert Speeds.from_json(json.loads(json.dumps(before.to_json()))) == before


@given(st.lists(st.floats(0, 100), max_size=20), REQUESTS, st.integers(0, 20))
def test_two_processes_count_what_one_would_have(seconds: list[float], requests: list[Served], cut: int) -> None:
    whole, merged = speeds(seconds, requests), speeds(seconds[:cut], requests[:cut])
    merged.merge(speeds(seconds[cut:], requests[cut:]))
    assert merged.environment.calls == whole.environment.calls
    assert merged.waited.calls == whole.waited.calls
    assert sum(merged.environment.seconds.values()) == pytest.approx(sum(seconds))
    assert merged.served.keys() == whole.served.keys()
    for largest, served in whole.served.items():
        assert (merged.served[largest].requests, merged.served[largest].tokens) == (served.requests, served.tokens)
        assert merged.served[largest].seconds == pytest.approx(served.seconds)
        assert merged.served[largest].at_once == pytest.approx(served.at_once)


def test_seconds_are_classed_by_milliseconds_and_requests_by_how_many_there_were_at_once() -> None:
    durations = Durations()
    for seconds in (0.0, 0.005, 0.006, 0.9):
        durations.add(seconds)
    assert durations.calls == {0: 1, 6: 2, 1024: 1}
    assert durations.seconds[6] == pytest.approx(0.011)
    served: dict[int, Served] = {}
    for at_once in (0.4, 5.2, 5.8):
        count(served, Served(1, 10, 1.0, at_once))
    assert served == {1: Served(1, 10, 1.0, 0.4), 6: Served(2, 20, 2.0, 11.0)}


def test_workers_and_hosts_report_what_the_run_directory_keeps(tmp_path: Path) -> None:
    worker = speeds([0.5, 0.25], [Served(1, 100, 2.0, 8.0)])
    reports: dict[str, dict[str, float | str]] = {
        "worker-0.11": {rollout_facts.SPEEDS: json.dumps(worker.to_json()), "tokens_per_s": 3.0},
        "worker-0.22": {rollout_facts.SPEEDS: json.dumps(worker.to_json())},
        "server-0": {"activations": 3.0, "stage_s": 0.75, "pause_s": 0.3, "longest_pause_s": 0.2, "version": "1.3"},
        "server-1": {"activations": 1.0, "stage_s": 0.25, "pause_s": 0.1, "longest_pause_s": 0.1, "version": "1.3"},
        "trainer": {"step": 4.0},
    }
    rollout_facts.write(tmp_path, rollout_facts.of_reports(reports))
    found = rollout_facts.read(tmp_path).speeds
    assert found.environment.calls == {256: 2, 512: 2}
    assert found.served == {8: Served(2, 200, 4.0, 16.0)}
    assert found.servers == {
        "activations": 4.0,
        "stage_s": 1.0,
        "pause_s": 0.4,
        "longest_pause_s": pytest.approx(0.3),
    }
    assert rollout_facts.SPEEDS in FOR_THE_SUMMARY, "the console shows counts, not tables of them"


def test_speeds_in_another_form_are_left_out_with_a_word(caplog: pytest.LogCaptureFixture) -> None:
    facts = rollout_facts.of_reports({"worker-0.11": {rollout_facts.SPEEDS: '{"served": 3}', "wait/x": 1.0}})
    assert (facts.waits_s, facts.speeds) == ({"x": 1.0}, Speeds())
    assert "worker-0.11 are left out" in caplog.text
