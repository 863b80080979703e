"""Lengths of answers, finished and cut off, as counts by length class; and the mean length that they tell.

A class is named by its largest length: 1, 2, 3, 4, 6, 8, 12, 16, ... tokens, two to an octave. Fifty of them hold
every answer there will ever be, so counts stay small however long a run is, and counts of several processes add up.

A cut answer is at least as long as it had got. Leaving such answers out, or taking them for finished, makes the mean
too small; the product-limit estimate gives their share to the answers that went on from there.
Source: Kaplan and Meier, doi:10.1080/01621459.1958.10501452; grouped by class, as in a life table.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


def class_of(length: int) -> int:
    """Largest length of the class that `length` falls into."""
    if length < 2:
        return max(length, 0)
    power = 1 << (length - 1).bit_length()
    return 3 * power // 4 if power >= 4 and length <= 3 * power // 4 else power


def middle_of(largest: int) -> float:
    """Mean of the lengths of a class."""
    if largest < 4:
        return float(largest)
    is_power = largest & (largest - 1) == 0
    before = 3 * largest // 4 if is_power else 2 * largest // 3
    return (before + 1 + largest) / 2


@dataclass(frozen=True)
class Estimate:
    """Mean tokens of an answer.

    Attributes:
        tokens: of finished answers alone it is their mean.
        at_least: the longest answers were all cut, or some were cut before anybody knew a token of them; the true
            mean is this or more.
    """

    tokens: float
    at_least: bool


@dataclass
class AnswerLengths:
    """Counts of finished and of cut answers by class, with the tokens of each kind."""

    finished: Counter[int] = field(default_factory=Counter)
    cut: Counter[int] = field(default_factory=Counter)
    finished_tokens: float = 0.0
    cut_tokens: float = 0.0

    def add(self, lengths: Iterable[int], *, cut: bool = False) -> None:
        """Count answers of these lengths; `cut`: they would have gone on."""
        for length in lengths:
            if cut:
                self.cut[class_of(length)] += 1
                self.cut_tokens += length
            else:
                self.finished[class_of(length)] += 1
                self.finished_tokens += length

    def merge(self, other: "AnswerLengths") -> None:
        """Count what another process or step counted."""
        self.finished.update(other.finished)
        self.cut.update(other.cut)
        self.finished_tokens += other.finished_tokens
        self.cut_tokens += other.cut_tokens

    @property
    def num_cut(self) -> int:
        """Answers that were cut."""
        return self.cut.total()

    def mean(self) -> Estimate | None:
        """Mean length of all that were started, up to the longest that was seen; None without answers."""
        at_risk = float(self.finished.total() + self.cut.total())
        if at_risk == 0:
            return None
        scale = self._scale()
        surviving, mean, longest = 1.0, 0.0, 0.0
        for largest in sorted({*self.finished, *self.cut}):
            ended, cut = self.finished[largest], self.cut[largest]
            longest = middle_of(largest) * scale
            if ended:
                # Cut somewhere within the class: on average they were there for half of it.
                ending = surviving * min(ended / (at_risk - cut / 2), 1.0)
                mean += ending * longest
                surviving -= ending
            at_risk -= ended + cut
        at_least = self.cut[largest] > 0 or self.cut[0] > 0
        return Estimate(mean + surviving * longest, at_least)

    def _scale(self) -> float:
        """Tokens of finished answers over what the middles of their classes give: without cuts the mean is exact."""
        by_middles = sum(middle_of(largest) * count for largest, count in self.finished.items())
        return self.finished_tokens / by_middles if by_middles > 0 else 1.0

    def to_json(self) -> dict[str, Any]:  # plain data for json.dump
        """Plain data: numbers and maps with string keys."""
        return {
            "finished": {str(largest): count for largest, count in sorted(self.finished.items())},
            "cut": {str(largest): count for largest, count in sorted(self.cut.items())},
            "finished_tokens": self.finished_tokens,
            "cut_tokens": self.cut_tokens,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "AnswerLengths":  # plain data of json.load
        """The inverse of to_json.

        Raises:
            ValueError, TypeError, KeyError: it is something else.
        """
        return cls(
            Counter({int(largest): int(count) for largest, count in data["finished"].items()}),
            Counter({int(largest): int(count) for largest, count in data["cut"].items()}),
            float(data["finished_tokens"]),
            float(data["cut_tokens"]),
        )
