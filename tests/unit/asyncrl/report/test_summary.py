"""The summary says what a run did, from its directory, the audit and the servers."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from asyncrl.report import plots, rollout_facts, summary
from asyncrl.report.answer_lengths import AnswerLengths

AUDIT: dict[str, Any] = {
    "ok": True,
    "identity": {"next_ordinal": 12, "consumed": 10, "dead": 1, "discarded": 1},
    "by_reason": {"stale": 2, "stale_on_arrival": 1, "reward_failed": 1},
    "problems": [],
}
EQUAL: dict[str, Any] = {"equal": True, "head": "2.4", "digest": "ab", "servers": {"server-0": {"version": "2.4"}}}
KEYS = {
    "heldout_before",
    "heldout_after",
    "steps",
    "versions",
    "wall_s",
    "lag_histogram",
    "lag_limit",
    "waits_s",
    "bytes_per_version",
    "bytes_per_changed_element",
    "audit_ok",
    "weights_equal",
    "stale_groups",
    "dead_groups",
    "length_bias",
}


def row(step: int, branch: int, **values: float | str) -> dict[str, float | str]:
    named = {name.replace("__", "/"): value for name, value in values.items()}
    return {"step": step, "branch": branch, "time_s": 1000.0 + 10 * step + branch, **named}


def trained(step: int, branch: int, **values: float | str) -> dict[str, float | str]:
    line = row(step, branch, **values) | {
        "critic/rewards/mean": 0.1 * step,
        "training/off_policy/lag/mean": 0.4,
        "training/off_policy/lag/max": 2,
        "training/off_policy/lag/0": 3,
        "training/off_policy/lag/2": 1,
        "buffer/num_groups": 4,
        "buffer/num_answers": 8,
        "response_length/mean": 20.0,
        "weightsync/version": float((branch << 32) | step),
        "weightsync/num_bytes": 1000 * step,
        "weightsync/num_changed": 500 * step,
        "perf/tokens_per_s": 100.0,
        "timing_s/step": 2.0,
        "timing_s/wait/trainer waits for fresh groups": 0.5,
    }
    return line


RUN = [
    row(0, 1, **{"val-core/digits/reward/mean@4": 0.25, "val/test_score/digits": 0.25}),
    *(trained(step, 1) for step in (1, 2, 3)),
    *(trained(step, 2) for step in (3, 4)),
    row(4, 2, **{"val-core/digits/reward/mean@4": 0.75, "val/test_score/digits": 0.75}),
]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    write(tmp_path, RUN)
    return tmp_path


def write(run_dir: Path, rows: list[dict[str, float | str]]) -> None:
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def build(run_dir: Path, **changed: Any) -> dict[str, Any]:
    return summary.build(run_dir, **{"audit": AUDIT, "servers": EQUAL, "lag_limit": 2, **changed})


def test_the_summary_of_a_resumed_run_counts_every_step_once(run_dir: Path) -> None:
    facts = build(run_dir)
    assert set(facts) >= KEYS
    assert (facts["heldout_before"], facts["heldout_after"]) == (0.25, 0.75)
    assert (facts["steps"], facts["versions"], facts["branches"]) == (4, 4, [1, 2])
    assert facts["lag_histogram"] == {"0": 12, "2": 4}
    assert (facts["lag_limit"], facts["groups_past_the_limit"]) == (2, 0)
    assert facts["bytes_per_version"] == 2500.0
    assert facts["bytes_per_changed_element"] == 2.0
    assert (facts["audit_ok"], facts["weights_equal"]) == (True, True)
    assert (facts["stale_groups"], facts["dead_groups"]) == (3, 1)
    trained = {"answers": 32.0, "tokens_per_answer": 20.0, "at_least": False}
    assert facts["length_bias"]["all"]["trained"] == trained


def test_seconds_are_those_that_were_spent_on_every_branch(run_dir: Path) -> None:
    (run_dir / "rollout").mkdir()
    (run_dir / "rollout" / "facts.json").write_text('{"waits_s": {"worker waits for admission": 7.5}}')
    facts = build(run_dir)
    assert facts["waits_s"] == {"trainer waits for fresh groups": 2.5, "worker waits for admission": 7.5}
    assert facts["wall_s"] == 41.0


def test_the_stall_share_is_of_all_seconds_that_steps_took(run_dir: Path) -> None:
    """Not the mean of shares: a long step counts for more. Steps of an older version without phases have no part."""
    shares = [(8.0, 0.5, {"wait_groups": 4.0, "update_actor": 3.0, "other": 1.0}), (2.0, 0.1, {"wait_groups": 0.2})]
    rows = [
        trained(step, 1)
        | {"timing_s/step": seconds, "perf/stall_share": share, "perf/mfu/actor": 0.1 * step}
        | {f"timing_s/phase/{name}": spent for name, spent in phases.items()}
        for step, (seconds, share, phases) in enumerate(shares, start=1)
    ]
    write(run_dir, rows)
    facts = build(run_dir)
    assert facts["stall_share"] == pytest.approx(0.42)
    assert facts["time_by_phase"] == pytest.approx({"wait_groups": 0.42, "update_actor": 0.3, "other": 0.1})
    assert facts["mfu"] == pytest.approx(0.15)
    assert "42.0 %" in (text := summary.render(facts))
    assert "wait_groups 42.0 %, update_actor 30.0 %, other 10.0 %" in text
    write(run_dir, RUN)
    assert (build(run_dir)["stall_share"], build(run_dir)["mfu"]) == (None, None)


def test_it_is_json_that_strict_readers_take(run_dir: Path) -> None:
    write(run_dir, [*RUN, trained(5, 2) | {"critic/rewards/mean": "nan", "perf/tokens_per_s": "inf"}])
    facts = build(run_dir)
    assert facts["reward_last"] is None
    json.dumps(facts, allow_nan=False)


def test_a_broken_facts_file_of_the_other_side_spoils_nothing(run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    (run_dir / "rollout").mkdir()
    (run_dir / "rollout" / "facts.json").write_text("{")
    assert build(run_dir)["waits_s"] == {"trainer waits for fresh groups": 2.5}
    assert "facts.json is left out" in caplog.text


def test_the_length_bias_counts_what_only_the_ledger_and_the_workers_know(run_dir: Path) -> None:
    ended = AnswerLengths()
    ended.add([200] * 8, cut=True)
    reports: dict[str, dict[str, float | str]] = {
        "worker-0.11": {rollout_facts.ENDED: rollout_facts.by_source_json({"digits": ended}), "wait/x": 1.5},
        "worker-0.22": {rollout_facts.ENDED: rollout_facts.by_source_json({"digits": ended}), "wait/x": 1.0},
        "trainer": {"waits_for": ""},
    }
    rollout_facts.write(run_dir, rollout_facts.of_reports(reports))
    spent = {"trained": {"trajectories": 32, "tokens": 640}, "failed/doomed": {"trajectories": 16, "tokens": 3200}}
    fates = {fate: {"digits": totals} for fate, totals in spent.items()}
    facts = build(run_dir, audit={**AUDIT, "tokens": {"fates": fates}})
    bias = facts["length_bias"]["digits"]
    assert (bias["trained"]["tokens_per_answer"], bias["started"]["at_least"]) == (20.0, True)
    assert "16 of 48 answers left before training, 16 of them unfinished" in bias["verdict"]
    assert facts["waits_s"]["x"] == 2.5
    assert summary.render(facts).count("length bias") == 1, "one source is all sources"


def test_lengths_that_a_worker_reported_in_another_form_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    facts = rollout_facts.of_reports({"worker-0.11": {rollout_facts.ENDED: '{"digits": 3}', "wait/x": 1.0}})
    assert (facts.waits_s, facts.ended) == ({"x": 1.0}, {})
    assert "worker-0.11 are left out" in caplog.text


def test_lag_past_the_limit_is_counted_and_shown(run_dir: Path) -> None:
    facts = build(run_dir, lag_limit=1)
    assert facts["groups_past_the_limit"] == 4
    assert "4 groups PAST IT" in summary.render(facts)


def test_what_was_not_measured_is_null_and_not_zero(tmp_path: Path) -> None:
    facts = build(tmp_path, servers={"equal": False})
    for key in ("heldout_before", "heldout_after", "bytes_per_version", "bytes_per_changed_element", "lag_mean"):
        assert facts[key] is None
    assert (facts["steps"], facts["versions"], facts["wall_s"], facts["lag_histogram"]) == (0, 0, 0.0, {})
    assert facts["weights_equal"] is False
    assert "NOT shown to be equal" in summary.render(facts)


def test_one_evaluation_is_before_and_not_after(run_dir: Path) -> None:
    write(run_dir, RUN[:3])
    facts = build(run_dir)
    assert (facts["heldout_before"], facts["heldout_after"]) == (0.25, None)


def test_several_sources_are_averaged_and_listed(run_dir: Path) -> None:
    write(
        run_dir,
        [
            row(0, 1, **{"val-core/a/reward/mean@1": 0.0, "val-core/openai/b/reward/mean@1": 0.5}),
            row(1, 1, **{"val-core/a/reward/mean@1": 0.5, "val-core/openai/b/reward/mean@1": 1.0}),
        ],
    )
    facts = build(run_dir)
    assert (facts["heldout_before"], facts["heldout_after"]) == (0.25, 0.75)
    assert facts["heldout_by_source"]["openai/b"] == {"before": 0.5, "after": 1.0}


def test_the_old_name_of_a_held_out_score_is_understood() -> None:
    assert summary.held_out({"val/test_score/digits": 0.5, "val-aux/x": 1.0}) == {"digits": 0.5}


def test_a_failed_audit_says_why(run_dir: Path) -> None:
    facts = build(run_dir, audit={**AUDIT, "ok": False, "problems": ["next_ordinal = 12, but ... = 11"]})
    assert facts["audit_ok"] is False
    assert "FAILED: next_ordinal = 12" in summary.render(facts)


def test_people_see_the_numbers_that_matter(run_dir: Path) -> None:
    text = summary.render(build(run_dir))
    for part in (
        "0.25 -> 0.75",
        "4 in 41 s, 4 versions, resumed 1 time",
        "0: 12, 2: 4; limit 2",
        "2.5 s: trainer waits for fresh groups",
        "was trained on: nothing",
        "equal on every live server",
    ):
        assert part in text, text
    assert max(map(len, text.splitlines())) <= summary.WIDTH


def test_the_picture_is_drawn_from_the_run_directory(run_dir: Path) -> None:
    path = plots.draw(run_dir, lag_limit=2)
    assert path == run_dir / plots.NAME
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_there_is_a_message_and_no_picture(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    assert plots.draw(run_dir) is None
    assert "matplotlib" in caplog.text


def test_without_metrics_there_is_a_message_and_no_picture(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert plots.draw(tmp_path) is None
    assert "no metrics yet" in caplog.text


def test_a_reward_that_is_no_number_leaves_a_gap_and_no_error(run_dir: Path) -> None:
    write(run_dir, [*RUN, trained(5, 2) | {"critic/rewards/mean": str(math.nan)}])
    assert plots.draw(run_dir) is not None
