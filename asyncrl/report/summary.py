"""The closing summary of a run, as data for summary.json and as a table for people."""

import logging
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from asyncrl.report import lag, length_bias, rollout_facts, scorers, tool_calls
from asyncrl.report.lines import REWARD, Line, by_suffix, read, surviving

log = logging.getLogger(__name__)

HELD_OUT = re.compile(r"val-core/(?P<source>.+)/reward/mean@\d+\Z")
HELD_OUT_OLD = re.compile(r"val/test_score/(?P<source>.+)\Z")
WAIT, PHASE = "timing_s/wait/", "timing_s/phase/"
VERSION_BITS = 32
WIDTH = 100


def build(
    run_dir: Path,
    *,
    audit: Mapping[str, Any],
    servers: Mapping[str, Any],
    lag_limit: int,
) -> dict[str, Any]:
    """Everything that is worth knowing about a finished run.

    Args:
        run_dir: holds metrics.jsonl; rollout/facts.json is read if it is there.
        audit: buffer.Audit.to_json().
        servers: `equal`: whether every live server holds the trainer's last version with its digest; further facts
            about them are passed on.
        lag_limit: the limit that the run was meant to keep.
    Returns:
        JSON data. Of a resumed run, the numbers are those of the branch that survived; seconds are of all branches,
        for they were spent. A number that nothing was measured for is None.
    """
    every = read(run_dir)
    lines = surviving(every)
    scores = [(line.step, found) for line in lines if (found := held_out(line.values))]
    before, after = (scores[0][1], scores[-1][1]) if len(scores) > 1 else (scores[0][1] if scores else {}, {})
    counts = lag.histogram(lines)
    rollout = rollout_facts.read(run_dir)
    bias = length_bias.measure(lines, rollout.ended, audit.get("tokens", {}).get("fates"))
    facts = {
        "heldout_before": _mean(before.values()),
        "heldout_after": _mean(after.values()),
        "heldout_by_source": {source: {"before": before.get(source), "after": after.get(source)} for source in before},
        "reward_first": next((line.values[REWARD] for line in lines if REWARD in line.values), None),
        "reward_last": next((line.values[REWARD] for line in reversed(lines) if REWARD in line.values), None),
        "steps": max((line.step for line in lines if line.is_training), default=0),
        "versions": max((_number_of(line) for line in lines), default=0),
        "branches": sorted({line.branch for line in every}),
        "wall_s": _wall_s(every),
        "tokens_per_s": _mean(line.values["perf/tokens_per_s"] for line in lines if "perf/tokens_per_s" in line.values),
        **_time(every),
        "lag_histogram": {str(versions): groups for versions, groups in counts.items()},
        "lag_limit": lag_limit,
        "lag_mean": lag.mean(counts),
        "groups_past_the_limit": lag.beyond(counts, lag_limit),
        "waits_s": _waits(every, rollout.waits_s),
        "scorers": scorers.summary_of(rollout.scorers),
        "tool_calls": dict(rollout.tool_calls),
        **_bytes(lines),
        "audit_ok": audit.get("ok") is True,
        "audit_problems": list(audit.get("problems", ())),
        "groups": dict(audit.get("identity", {})),
        "groups_by_reason": dict(audit.get("by_reason", {})),
        "stale_groups": _stale(audit, lines),
        "dead_groups": int(audit.get("identity", {}).get("dead", 0)),
        "weights_equal": servers.get("equal") is True,
        "servers": dict(servers),
        "length_bias": {source or "all": measured.to_json() for source, measured in bias.items()},
    }
    return {name: _finite(value) for name, value in facts.items()}


def held_out(values: Mapping[str, float]) -> dict[str, float]:
    """Held-out score by source, from verl's present name or, without one, its old alias."""
    for pattern in (HELD_OUT, HELD_OUT_OLD):
        found = {match["source"]: value for name, value in values.items() if (match := pattern.match(name))}
        if found:
            return found
    return {}


def render(summary: Mapping[str, Any]) -> str:
    """The summary as a table for people."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in _rows(summary):
        table.add_row(Text(name), Text(value))
    console = Console(width=WIDTH, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "held-out score", f"{_shown(summary['heldout_before'])} -> {_shown(summary['heldout_after'])}"
    yield "training reward", f"{_shown(summary['reward_first'])} -> {_shown(summary['reward_last'])}"
    resumed = len(summary["branches"]) - 1
    yield (
        "steps",
        f"{summary['steps']}{_asked(summary)} in {_shown(summary['wall_s'])} s, {summary['versions']} versions"
        + (f", resumed {resumed} time{'s' if resumed > 1 else ''}" if resumed > 0 else ""),
    )
    if end := summary.get("ended"):
        yield "ended", f"{end['reason']}, by {end['ended_by'] or 'a kill'}" + (f": {end['why']}" if end["why"] else "")
    if best := summary.get("best_checkpoint"):
        yield "best checkpoint", f"{best['name']}, held-out score {_shown(best['score'])}"
    groups = ", ".join(f"{versions}: {count}" for versions, count in summary["lag_histogram"].items())
    past = summary["groups_past_the_limit"]
    yield (
        "lag (versions: groups)",
        f"{groups or 'no groups'}; limit {summary['lag_limit']}" + (f", {past} groups PAST IT" if past else ""),
    )
    yield "stale, dead groups", f"{summary['stale_groups']}, {summary['dead_groups']}"
    yield "bytes per version", _shown(summary["bytes_per_version"])
    yield "bytes per changed weight", _shown(summary["bytes_per_changed_element"])
    yield "trained tokens/s", _shown(summary["tokens_per_s"])
    yield "trainer stalled", _shown_share(summary["stall_share"])
    shares = [f"{name} {_shown_share(share)}" for name, share in summary["time_by_phase"].items() if share >= 0.01]
    yield "time of the steps", ", ".join(shares) or "not measured"
    for index, (name, seconds) in enumerate(sorted(summary["waits_s"].items(), key=lambda item: -item[1])):
        yield "waited" if index == 0 else "", f"{_shown(seconds)} s: {name}"
    yield from scorers.rows_of(summary.get("scorers", {}))
    yield from tool_calls.rows_of(summary.get("tool_calls", {}))
    biases = summary["length_bias"]
    for source, bias in biases.items() if len(biases) > 2 else [("all", biases["all"])]:
        yield ("length bias" if source == "all" else f"length bias, {source}"), bias["verdict"]
    problems = summary["audit_problems"]
    yield "audit", "ok" if summary["audit_ok"] else f"FAILED: {'; '.join(problems) or 'no answer'}"
    yield "weights", "equal on every live server" if summary["weights_equal"] else "NOT shown to be equal"


def _asked(summary: Mapping[str, Any]) -> str:
    """Of a run that did fewer steps than it was asked for: how many that were."""
    asked = summary.get("steps_asked", 0)
    return f" of {asked}" if asked > summary["steps"] else ""


def _shown(value: float | None) -> str:
    if value is None:
        return "not measured"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _shown_share(value: float | None) -> str:
    return "not measured" if value is None else f"{100 * value:.1f} %"


def _waits(lines: Sequence[Line], rollout: Mapping[str, float]) -> dict[str, float]:
    """Seconds by wait name: the trainer's from its metrics, the rollout side's from what it left behind."""
    seconds: dict[str, float] = defaultdict(float)
    for line in lines:
        for name, value in by_suffix(line.values, WAIT):
            seconds[name] += value
    for name, value in rollout.items():
        seconds[name] += value
    return {name: round(value, 3) for name, value in sorted(seconds.items())}


def _bytes(lines: Sequence[Line]) -> dict[str, float | None]:
    """Bytes of weight updates: per published version, and per weight that changed."""
    published = [line.values for line in lines if line.values.get("weightsync/num_bytes", 0) > 0]
    total = sum(values["weightsync/num_bytes"] for values in published)
    changed = sum(values.get("weightsync/num_changed", 0) for values in published)
    return {
        "bytes_per_version": total / len(published) if published else None,
        "bytes_per_changed_element": total / changed if changed else None,
    }


def _time(lines: Sequence[Line]) -> dict[str, Any]:
    """Shares of the steps' seconds: stalls as one number, and each phase; and the share of the devices' peak."""
    steps = [line.values for line in lines if line.values.get("timing_s/step", 0) > 0]
    total_s = sum(values["timing_s/step"] for values in steps)
    phases: dict[str, float] = defaultdict(float)
    for values in steps:
        for name, seconds in by_suffix(values, PHASE):
            phases[name] += seconds / total_s
    stalls = [values["perf/stall_share"] * values["timing_s/step"] for values in steps if "perf/stall_share" in values]
    return {
        "stall_share": sum(stalls) / total_s if stalls else None,
        "time_by_phase": dict(sorted(phases.items(), key=lambda item: -item[1])),
        "mfu": _mean(values["perf/mfu/actor"] for values in steps if "perf/mfu/actor" in values),
    }


def _stale(audit: Mapping[str, Any], lines: Sequence[Line]) -> int:
    """Groups that left for being stale; the ledger knows best, metrics if it is not asked."""
    if "by_reason" in audit:
        return sum(int(count) for reason, count in audit["by_reason"].items() if str(reason).startswith("stale"))
    counts = (found for line in lines for found in by_suffix(line.values, "buffer/left/stale"))
    return int(sum(groups for name, groups in counts if name.endswith("/groups")))


def _number_of(line: Line) -> int:
    """Number of the version whose publish a line tells of; versions are packed with their branch above it."""
    return int(line.values.get("weightsync/version", 0)) & ((1 << VERSION_BITS) - 1)


def _wall_s(lines: Sequence[Line]) -> float:
    """Seconds on the wall from the start of the first line's step to the last line, restarts included."""
    if not lines:
        return 0.0
    first = min(lines, key=lambda line: line.time_s)
    last_s = max(line.time_s for line in lines)
    return round(last_s - first.time_s + first.values.get("timing_s/step", 0.0), 3)


def _finite(value: Any) -> Any:  # Any: JSON has no narrower name
    """The value with None for every NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _mean(values: Any) -> float | None:  # Any: any iterable of numbers
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else None
