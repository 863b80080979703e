"""How old the keys and values were that tokens were sampled with, in versions, and how much of the prompts was reused.

A request's cache is of the version that it began with. Where updates keep the caches of requests in flight
(`weightsync.kv: keep`), what is sampled after one looks at keys and values of older weights; else they are made anew.
Workers report sums over their life; the trainer writes what was added since the last step.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from buffer.versions import unpack

FACT = "kv"
"""In a worker's report: JSON of its `KvAge`."""
MOST = 64  # ages above count as this one, so that a report stays small

log = logging.getLogger(__name__)


@dataclass
class KvAge:
    """Sampled tokens by the age of what they looked at, and tokens of prompts.

    Attributes:
        tokens: age in versions -> sampled tokens.
        prompt: tokens of prompts, an episode's earlier turns included.
        reused: those of them whose keys and values the server had already.
    """

    tokens: Counter[int] = field(default_factory=Counter)
    prompt: int = 0
    reused: int = 0

    def count(self, began_on: int, spans: Iterable[tuple[int, int]], *, kept: bool) -> None:
        """Count an answer.

        Args:
            began_on: packed version whose cache the request was given.
            spans: packed version and number of tokens of each run of the answer's tokens.
            kept: whether caches of requests in flight outlive an update.
        """
        for version, num_tokens in spans:
            self.tokens[versions_between(began_on, version) if kept else 0] += num_tokens

    def metrics(self) -> dict[str, float]:
        """rollout/kv_age_{mean,max}, rollout/kv_aged_share and rollout/kv_reused_share; none without tokens."""
        found, sampled = {}, sum(self.tokens.values())
        if sampled:
            ages = [age for age, tokens in self.tokens.items() if tokens > 0]
            found["rollout/kv_age_mean"] = sum(age * tokens for age, tokens in self.tokens.items()) / sampled
            found["rollout/kv_age_max"] = float(max(ages, default=0))
            found["rollout/kv_aged_share"] = 1.0 - self.tokens[0] / sampled
        if self.prompt:
            found["rollout/kv_reused_share"] = self.reused / self.prompt
        return found

    def as_fact(self) -> str:
        """As a worker reports it."""
        return json.dumps([{str(age): tokens for age, tokens in self.tokens.items()}, self.prompt, self.reused])

    @classmethod
    def from_fact(cls, text: str) -> "KvAge":
        """The inverse of as_fact. Raises ValueError, TypeError, AttributeError: it is something else."""
        tokens, prompt, reused = json.loads(text)
        return cls(Counter({int(age): int(count) for age, count in tokens.items()}), int(prompt), int(reused))

    def since(self, before: "KvAge") -> "KvAge":
        """What was added since `before`, of the same worker."""
        added = Counter({age: tokens - before.tokens[age] for age, tokens in self.tokens.items()})
        return KvAge(+added, max(0, self.prompt - before.prompt), max(0, self.reused - before.reused))

    def merge(self, other: "KvAge") -> None:
        """Count what another worker counted."""
        self.tokens.update(other.tokens)
        self.prompt += other.prompt
        self.reused += other.reused


class KvAges:
    """The ages that all workers report, from one `drain` to the next."""

    def __init__(self) -> None:
        self._seen: dict[str, KvAge] = {}
        self._added = KvAge()

    def update(self, reports: Mapping[str, Mapping[str, Any]]) -> None:  # Any: texts and numbers
        """Take what each source last reported. A worker that was started again reports under another name."""
        for source, facts in reports.items():
            if FACT not in facts:
                continue
            try:
                now = KvAge.from_fact(str(facts[FACT]))
            except (ValueError, TypeError, AttributeError) as error:
                log.warning("the report of %s on its caches is left out: %s", source, error)
                continue
            self._added.merge(now.since(self._seen.get(source, KvAge())))
            self._seen[source] = now

    def drain(self) -> dict[str, float]:
        """Metrics of what was added since the last call."""
        added, self._added = self._added, KvAge()
        return added.metrics()


def versions_between(older: int, newer: int) -> int:
    """Versions from one to the other, at most MOST; over a change of branch at least one.

    Args:
        older, newer: packed. A token's version is never older than its request's, but for a server that was started
            again: 0 then.
    """
    if newer <= older:
        return 0
    (branch, number), (other, later) = unpack(older), unpack(newer)
    return min(MOST, later - number if branch == other else max(1, later - number))
