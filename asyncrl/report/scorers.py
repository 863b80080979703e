"""How each scorer of a run did: calls, failures by kind, seconds and answers from the cache, as sums that add up."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from asyncrl.report.speeds import Durations

SCORED = "scored"
MAX_SCORERS = 64
"""Scorers of one report; a configuration with more keeps the first."""


MAX_ERROR = 300
"""Characters that are kept of a failure."""


@dataclass
class ScorerCalls:
    """One scorer.

    Attributes:
        outcomes: calls by how they went: `scored`, or a word for the failure.
        seconds: of each call that was made, waiting for room included.
        num_cached: answers that got the score of an equal one, without a call.
        last_error: what the newest failure said.
    """

    outcomes: dict[str, int] = field(default_factory=dict)
    seconds: Durations = field(default_factory=Durations)
    num_cached: int = 0
    last_error: str = ""

    @property
    def num_calls(self) -> int:
        """Calls made, failed ones included."""
        return sum(self.outcomes.values())

    @property
    def num_failed(self) -> int:
        """Calls that gave no reward."""
        return self.num_calls - self.outcomes.get(SCORED, 0)

    def add(self, kind: str, seconds: float, error: str = "") -> None:
        """Count one call."""
        self.outcomes[kind] = self.outcomes.get(kind, 0) + 1
        self.seconds.add(seconds)
        self.last_error = error[:MAX_ERROR] or self.last_error

    def merge(self, other: "ScorerCalls") -> None:
        """Count what another process counted."""
        for kind, count in other.outcomes.items():
            self.outcomes[kind] = self.outcomes.get(kind, 0) + count
        self.seconds.merge(other.seconds)
        self.num_cached += other.num_cached
        self.last_error = other.last_error or self.last_error

    def quantile_s(self, share: float) -> float | None:
        """Seconds that this share of the calls kept to, to within their class (two to an octave); None: no calls."""
        calls, seen = self.seconds.calls, 0
        for largest_ms in sorted(calls):
            seen += calls[largest_ms]
            if seen >= share * sum(calls.values()):
                return largest_ms / 1000
        return None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "outcomes": dict(self.outcomes),
            "seconds": self.seconds.to_json(),
            "cached": self.num_cached,
            "last_error": self.last_error,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "ScorerCalls":  # plain data of json.load
        """The inverse of to_json. Raises ValueError, TypeError, KeyError, AttributeError: it is something else."""
        return cls(
            {str(kind): int(count) for kind, count in data["outcomes"].items()},
            Durations.from_json(data["seconds"]),
            int(data["cached"]),
            str(data["last_error"]),
        )


ByScorer = Mapping[str, ScorerCalls]
"""Name of a scorer -> its calls."""


def as_fact(scorers: ByScorer) -> str:
    """As a worker reports them."""
    return json.dumps({name: scorers[name].to_json() for name in list(scorers)[:MAX_SCORERS]})


def from_fact(text: str) -> dict[str, ScorerCalls]:
    """The inverse of as_fact. Raises as ScorerCalls.from_json."""
    return {str(name): ScorerCalls.from_json(calls) for name, calls in json.loads(text).items()}


def summary_of(scorers: ByScorer) -> dict[str, Any]:
    """For summary.json: of each scorer its calls, failures by kind, times and what the last failure said."""
    return {
        name: {
            "calls": calls.num_calls,
            "failed": {kind: count for kind, count in calls.outcomes.items() if kind != SCORED},
            "cached": calls.num_cached,
            "p50_s": calls.quantile_s(0.5),
            "p99_s": calls.quantile_s(0.99),
            "last_error": calls.last_error,
        }
        for name, calls in sorted(scorers.items())
    }


def rows_of(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Lines of the closing table, from what `summary_of` gave."""
    for name, one in summary.items():
        failed = sum(one["failed"].values())
        kinds = ", ".join(f"{count} {kind}" for kind, count in one["failed"].items())
        times = f"{1000 * (one['p50_s'] or 0):.0f} ms, 99 % within {1000 * (one['p99_s'] or 0):.0f} ms"
        text = f"{one['calls']} calls, half within {times}" if one["calls"] else "no calls"
        text += f", {one['cached']} from the cache" if one["cached"] else ""
        yield f"scorer {name}", text + (f"; {failed} FAILED ({kinds}): {one['last_error']}" if failed else "")
