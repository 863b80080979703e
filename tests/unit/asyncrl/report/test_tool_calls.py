"""The line of tool calls: counts of several workers add up, travel with the facts, and are shown by outcome."""

from collections.abc import Mapping
from pathlib import Path

from asyncrl.report import rollout_facts, tool_calls

REPORTS: Mapping[str, Mapping[str, float | str]] = {
    "worker-0": {
        "tool_calls": 1000.0,
        "tool_calls_ok": 900.0,
        "tool_calls_malformed": 70.0,
        "tool_calls_timeout": 30.0,
    },
    "worker-1": {"tool_calls": 500.0, "tool_calls_ok_string_form": 480.0, "tool_calls_unknown_tool": 20.0},
    "trainer": {"tool_calls": "many", "step": 3.0, "tool_releases_failed": 0.0},
}


def test_counts_of_all_workers_are_kept_with_the_run(tmp_path: Path) -> None:
    rollout_facts.write(tmp_path, rollout_facts.of_reports(REPORTS))
    found = rollout_facts.read(tmp_path).tool_calls
    assert (found["tool_calls"], found["tool_calls_ok"], found["tool_calls_malformed"]) == (1500, 900, 70)
    assert "tool_releases_failed" not in found


def test_facts_of_an_older_run_have_none(tmp_path: Path) -> None:
    (tmp_path / "rollout").mkdir()
    (tmp_path / "rollout" / "facts.json").write_text('{"waits_s": {}}')
    assert rollout_facts.read(tmp_path).tool_calls == {}


def test_the_line_shows_what_did_not_go_well_most_often_first() -> None:
    rows = tool_calls.rows_of(tool_calls.summed(REPORTS))
    assert list(rows) == [("tool calls", "1,500, 92.0 % ok; 70 malformed, 30 timeout, 20 unknown tool")]
    assert list(tool_calls.rows_of({"tool_calls": 4, "tool_calls_ok": 4})) == [("tool calls", "4, 100.0 % ok")]
    assert list(tool_calls.rows_of({})) == []
