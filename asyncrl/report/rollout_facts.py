"""What the rollout side leaves of a run: its waits, the lengths of answers that never came in, how fast it was, and
what became of calls.

Workers report these to the buffer while they live; the command that closes the run keeps their sums in
rollout/facts.json. A worker that is killed leaves its last report, at most a few seconds old.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from asyncrl.report import tool_calls
from asyncrl.report.answer_lengths import AnswerLengths
from asyncrl.report.scorers import ByScorer, ScorerCalls, from_fact
from asyncrl.report.speeds import Speeds

log = logging.getLogger(__name__)

WAIT = "wait/"
"""Before the name of a wait, in a worker's report: seconds spent."""
ENDED = "ended_lengths"
"""In a worker's report: JSON of `by_source_json`."""
SPEEDS = "speeds"
"""In a worker's report: JSON of its `Speeds`."""
SCORERS = "scorers"
"""In a worker's report: JSON of its calls by scorer."""

BySource = Mapping[str, AnswerLengths]
"""Data source -> lengths of the answers of groups that ended with their worker."""


@dataclass(frozen=True)
class RolloutFacts:
    """Seconds by wait, lengths by data source, speeds, calls by scorer, and calls of tools by outcome; over all workers
    and hosts."""

    waits_s: Mapping[str, float] = field(default_factory=dict)
    ended: BySource = field(default_factory=dict)
    speeds: Speeds = field(default_factory=Speeds)
    scorers: ByScorer = field(default_factory=dict)
    tool_calls: Mapping[str, int] = field(default_factory=dict)


def by_source_json(ended: BySource) -> str:
    """As a worker reports them."""
    return json.dumps({source: lengths.to_json() for source, lengths in ended.items()})


def of_reports(reports: Mapping[str, Mapping[str, float | str]]) -> RolloutFacts:
    """The sums over all sources of reports."""
    spent: dict[str, float] = defaultdict(float)
    ended: dict[str, AnswerLengths] = defaultdict(AnswerLengths)
    speeds, scorers = Speeds(), defaultdict[str, ScorerCalls](ScorerCalls)
    for reporter, facts in reports.items():
        for name, value in facts.items():
            if name.startswith(WAIT) and not isinstance(value, str):
                spent[name.removeprefix(WAIT)] += value
        speeds.host(facts)
        try:
            found = _lengths(json.loads(str(facts.get(ENDED) or "{}")))
            text = facts.get(SPEEDS)
            own = Speeds.from_json(json.loads(str(text))) if text else Speeds()
            calls = from_fact(str(facts.get(SCORERS) or "{}"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("lengths, speeds and scorers of %s are left out: %s: %s", reporter, type(error).__name__, error)
            continue
        speeds.merge(own)
        for name, one in calls.items():
            scorers[name].merge(one)
        for source, lengths in found.items():
            ended[source].merge(lengths)
    return RolloutFacts(dict(spent), dict(ended), speeds, dict(scorers), tool_calls.summed(reports))


def write(run_dir: Path, facts: RolloutFacts) -> None:
    """Keep them in the run directory."""
    path = _path(run_dir)
    path.parent.mkdir(parents=True, exist_ok=True)
    ended = {source: lengths.to_json() for source, lengths in facts.ended.items()}
    scorers = {name: calls.to_json() for name, calls in facts.scorers.items()}
    data = {
        "waits_s": facts.waits_s,
        "ended": ended,
        "speeds": facts.speeds.to_json(),
        "scorers": scorers,
        "tool_calls": facts.tool_calls,
    }
    path.write_text(json.dumps(data, indent=2) + "\n")


def read(run_dir: Path) -> RolloutFacts:
    """What was kept; nothing, with the reason in the log, if it cannot be read: a summary is not spoilt by it."""
    path = _path(run_dir)
    if not path.exists():
        return RolloutFacts()
    try:
        facts = json.loads(path.read_text())
        waits_s = {str(name): float(seconds) for name, seconds in facts["waits_s"].items()}
        speeds = Speeds.from_json(facts["speeds"]) if "speeds" in facts else Speeds()
        scorers = {str(name): ScorerCalls.from_json(calls) for name, calls in facts.get("scorers", {}).items()}
        calls = {str(name): int(count) for name, count in facts.get("tool_calls", {}).items()}
        return RolloutFacts(waits_s, _lengths(facts.get("ended", {})), speeds, scorers, calls)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s is left out of the summary: %s: %s", path, type(error).__name__, error)
        return RolloutFacts()


def _path(run_dir: Path) -> Path:
    return run_dir / "rollout" / "facts.json"


def _lengths(data: Mapping[str, Mapping[str, object]]) -> dict[str, AnswerLengths]:
    return {str(source): AnswerLengths.from_json(lengths) for source, lengths in data.items()}
