"""Whether dropping selected on length: answers that were started against those trained on, censored ones included.

Read from the metrics of each step, over all sources, and by source where one is named behind them:

    buffer/num_groups                            groups trained on
    response_length/mean                         tokens per answer of those
    buffer/left/<reason>/groups                  groups that left instead, for the reason
    buffer/left/<reason>/response_length/mean    tokens per answer that those had got
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from asyncrl.report.lines import Line

NOTICEABLE = 0.05  # a difference of means below this is within the noise of a run's lengths
ALL = ""
LEFT = re.compile(r"buffer/left/(?P<reason>[^/]+)/groups(/(?P<source>.+))?\Z")
TRAINED = re.compile(r"buffer/num_groups(/(?P<source>.+))?\Z")


@dataclass
class Lengths:
    """Groups of one fate, and the sum over them of their mean tokens per answer."""

    groups: float = 0.0
    tokens: float = 0.0

    def add(self, groups: float, tokens_per_answer: float) -> None:
        """Count further groups."""
        self.groups += groups
        self.tokens += groups * tokens_per_answer

    def per_answer(self) -> float | None:
        """Mean tokens of an answer; None without groups."""
        return self.tokens / self.groups if self.groups > 0 else None

    def to_json(self) -> dict[str, float | None]:
        """For summary.json."""
        return {"groups": self.groups, "tokens_per_answer": self.per_answer()}


@dataclass(frozen=True)
class LengthBias:
    """Lengths by fate: the trained ones, and by reason those that left before."""

    trained: Lengths
    left: dict[str, Lengths]

    def started(self) -> Lengths:
        """All that were started and have ended."""
        kinds = [self.trained, *self.left.values()]
        return Lengths(sum(kind.groups for kind in kinds), sum(kind.tokens for kind in kinds))

    def verdict(self) -> str:
        """One plain sentence about what dropping did to the lengths."""
        left = sum(kind.groups for kind in self.left.values())
        trained, started = self.trained.per_answer(), self.started().per_answer()
        if trained is None or started is None:
            return "No group was trained on, so there is nothing to compare."
        if left == 0:
            return "Every group that was started and has ended was trained on: nothing selected on length."
        numbers = f"{trained:.1f} tokens per trained answer against {started:.1f} per started one"
        share = f"{left:.0f} of {self.started().groups:.0f} groups left before training"
        if trained < started * (1 - NOTICEABLE):
            return (
                f"Trained answers are {1 - trained / started:.0%} shorter than started ones ({numbers}; {share}): "
                "long answers were lost. staleness.policy wait, a higher staleness.limit or fewer rollout.slots loses "
                "fewer of them."
            )
        if trained > started * (1 + NOTICEABLE):
            return f"Trained answers are {trained / started - 1:.0%} longer than started ones ({numbers}; {share})."
        return f"Trained answers are as long as started ones ({numbers}; {share})."

    def to_json(self) -> dict[str, object]:
        """For summary.json."""
        return {
            "trained": self.trained.to_json(),
            "started": self.started().to_json(),
            "left": {reason: kind.to_json() for reason, kind in sorted(self.left.items())},
            "verdict": self.verdict(),
        }


def measure(lines: Sequence[Line]) -> dict[str, LengthBias]:
    """Lengths by source; "" is all sources together and always there. Groups without a length are left aside."""
    trained: dict[str, Lengths] = defaultdict(Lengths)
    left: dict[str, dict[str, Lengths]] = defaultdict(lambda: defaultdict(Lengths))
    for line in lines:
        for name, groups in line.values.items():
            if (match := TRAINED.match(name)) is not None:
                source = match["source"] or ALL
                length = line.values.get(f"response_length/{source}/mean" if source else "response_length/mean")
                if length is not None:
                    trained[source].add(groups, length)
            elif (match := LEFT.match(name)) is not None:
                source, reason = match["source"] or ALL, match["reason"]
                behind = f"response_length/{source}/mean" if source else "response_length/mean"
                length = line.values.get(f"buffer/left/{reason}/{behind}")
                if length is not None and groups > 0:
                    left[source][reason].add(groups, length)
    return {source: LengthBias(trained[source], dict(left[source])) for source in sorted({ALL, *trained, *left})}
