"""Draw what the episodes of a group will take, the same for the same prompt whenever and under whatever setting.

A prompt that is played again is drawn as before, as it is in a run: seeds follow from prompt and episode. Two settings
that are compared get the same prompts, so that their difference is not chance.
"""

import random
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import sqrt
from statistics import NormalDist

from asyncrl.tuning.profile import Answers

NORMAL = NormalDist()


@dataclass(frozen=True)
class EpisodeDraw:
    """One episode: tokens of each turn, and seconds of the environment after each."""

    turns: tuple[tuple[float, float], ...]

    @property
    def tokens(self) -> float:
        """Sampled tokens."""
        return sum(tokens for tokens, _ in self.turns)


class Draws:
    """Draws groups of one profile with one seed."""

    def __init__(self, answers: Answers, group_size: int, seed: int) -> None:
        self._answers, self._group_size, self._seed = answers, group_size, seed
        self._lengths = _Quantiles({float(length): seen for length, seen in answers.lengths.items()})
        self._environment = _Quantiles(answers.environment_s) if answers.environment_s else None

    def group(self, ordinal: int) -> list[EpisodeDraw]:
        """The episodes of a prompt."""
        rng = random.Random(f"{self._seed}.{ordinal}")
        shared, share = rng.gauss(0.0, 1.0), self._answers.in_group_share
        episodes = []
        for _ in range(self._group_size):
            # Length by the rank of a normal number of which a part is the group's.
            own = sqrt(1 - share) * shared + sqrt(share) * rng.gauss(0.0, 1.0)
            tokens = self._lengths.at(NORMAL.cdf(own))
            turns = int(self._answers.turns) + (rng.random() < self._answers.turns % 1)
            episodes.append(
                EpisodeDraw(
                    tuple(
                        (tokens / turns, self._environment.at(rng.random()) if self._environment else 0.0)
                        for _ in range(turns)
                    )
                )
            )
        return episodes


class _Quantiles:
    """The inverse of a distribution that is given by values and how often each was seen."""

    def __init__(self, counts: Mapping[float, float]) -> None:
        self._values = sorted(counts)
        self._up_to = list(accumulate(counts[value] for value in self._values))

    def at(self, share: float) -> float:
        """The value below which this share of all is."""
        return self._values[min(bisect_left(self._up_to, share * self._up_to[-1]), len(self._values) - 1)]
