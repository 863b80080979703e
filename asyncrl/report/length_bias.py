"""Whether dropping selected on length: answers that were started against those trained on, censored ones included.

Read from metrics, over all sources and by source where a source is named behind the last part:

    training/off_policy/lag/<k>    groups trained on in the step
    response_length/mean           tokens per answer of the groups trained on in the step
    buffer/left/<reason>           groups that have left the buffer for the reason, so far in the run
    buffer/left_tokens/<reason>    tokens that groups leaving for the reason in the step had got
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from asyncrl.report.lines import LAG, Line, by_suffix

NOTICEABLE = 0.05  # a difference of means below this is within the noise of a run's lengths
ALL = ""


@dataclass
class Lengths:
    """Answers of one kind: how many groups, and tokens over all their answers."""

    groups: float = 0.0
    tokens: float = 0.0

    def per_answer(self, group_size: int) -> float | None:
        """Mean tokens of an answer; None without groups."""
        return self.tokens / (self.groups * group_size) if self.groups > 0 else None


@dataclass(frozen=True)
class LengthBias:
    """Lengths by fate: the trained ones, and by reason those that left before."""

    trained: Lengths
    left: dict[str, Lengths]
    group_size: int

    def started(self) -> Lengths:
        """All that were started and have ended."""
        kinds = [self.trained, *self.left.values()]
        return Lengths(sum(kind.groups for kind in kinds), sum(kind.tokens for kind in kinds))

    def verdict(self) -> str:
        """One plain sentence about what dropping did to the lengths."""
        left = sum(kind.groups for kind in self.left.values())
        trained, started = self.trained.per_answer(self.group_size), self.started().per_answer(self.group_size)
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
            "trained": self._json(self.trained),
            "started": self._json(self.started()),
            "left": {reason: self._json(kind) for reason, kind in sorted(self.left.items())},
            "verdict": self.verdict(),
        }

    def _json(self, kind: Lengths) -> dict[str, float | None]:
        return {"groups": kind.groups, "tokens_per_answer": kind.per_answer(self.group_size)}


def measure(lines: Sequence[Line], group_size: int) -> dict[str, LengthBias]:
    """Lengths by source; "" is all sources together and always there. Groups of a size other than `group_size` would be
    counted as if they had it."""
    trained: dict[str, Lengths] = defaultdict(Lengths)
    left: dict[str, dict[str, Lengths]] = defaultdict(lambda: defaultdict(Lengths))
    before: dict[str, float] = {}
    for line in lines:
        groups = sum(count for lag, count in by_suffix(line.values, LAG) if lag.isdigit())
        length = line.values.get("response_length/mean")
        if groups and length is not None:
            trained[ALL].groups += groups
            trained[ALL].tokens += groups * group_size * length
        for source, count in by_suffix(line.values, "training/groups/"):
            length = line.values.get(f"response_length/{source}/mean")
            if count and length is not None:
                trained[source].groups += count
                trained[source].tokens += count * group_size * length
        for name, total in by_suffix(line.values, "buffer/left/"):
            reason, _, source = name.partition("/")
            # A resume restores the counters of its checkpoint, so the sum may go back; it never loses a group twice.
            left[source][reason].groups += max(0.0, total - before.get(name, 0.0))
            before[name] = total
        for name, tokens in by_suffix(line.values, "buffer/left_tokens/"):
            reason, _, source = name.partition("/")
            left[source][reason].tokens += tokens
    sources = {ALL, *trained, *left}
    return {
        source: LengthBias(
            trained[source], {reason: kind for reason, kind in left[source].items() if kind.groups > 0}, group_size
        )
        for source in sorted(sources)
    }
