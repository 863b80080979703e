"""Named numbers summed over micro-batches and ranks as (numerator, count) and divided once."""

import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Self

import msgpack


def _largest(a: float, b: float) -> float:
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)


def _smallest(a: float, b: float) -> float:
    return math.nan if math.isnan(a) or math.isnan(b) else min(a, b)


EXTREMES: Mapping[str, Callable[[float, float], float]] = MappingProxyType({"max": _largest, "min": _smallest})
"""Last word of a name (`buffer/lag_max`, `response_length/min`) -> how its values join; every other name is a mean.

A NaN wins over every number, so that the result does not depend on who came first.
"""


class Pairs:
    """Name -> numerator and count. Means of parts are never averaged: a short micro-batch would weigh too much."""

    def __init__(self) -> None:
        self._pairs: dict[str, list[float]] = {}

    def add(self, name: str, value: float, count: float = 1.0) -> None:
        """Add a mean over `count` things (or an extreme among them). A count of 0 adds nothing, whatever the value."""
        join = EXTREMES.get(last_word(name))
        if count == 0:
            return
        if join is None:
            self.add_sum(name, value * count, count)
        else:
            self._join(name, join, float(value), count)

    def add_sum(self, name: str, numerator: float, count: float) -> None:
        """Add a sum over `count` things.

        Raises:
            ValueError: `name` is that of an extreme, which has no sum; or `count` is negative or not finite.
        """
        if last_word(name) in EXTREMES:
            raise ValueError(f"{name} ends in {last_word(name)}, so it is an extreme and no sum; use add")
        if not (math.isfinite(count) and count >= 0):
            raise ValueError(f"{name}: the count is {count}; a mean over it would be no mean")
        if count == 0:
            return
        pair = self._pairs.setdefault(name, [0.0, 0.0])
        pair[0] += numerator
        pair[1] += count

    def merge(self, other: "Pairs") -> None:
        """Add another rank's or micro-batch's pairs."""
        for name, (numerator, count) in other._pairs.items():
            join = EXTREMES.get(last_word(name))
            if join is None:
                self.add_sum(name, numerator, count)
            else:
                self._join(name, join, numerator, count)

    def means(self) -> dict[str, float]:
        """Name -> mean, or the extreme; names without a single thing to count are absent, not NaN."""
        return {
            name: numerator if last_word(name) in EXTREMES else numerator / count
            for name, (numerator, count) in self._pairs.items()
        }

    def to_bytes(self) -> bytes:
        """For another rank's from_bytes; msgpack."""
        blob: bytes = msgpack.packb(self._pairs)
        return blob

    @classmethod
    def from_bytes(cls, blob: bytes) -> Self:
        """Read what to_bytes wrote.

        Raises:
            ValueError: the bytes hold something else.
        """
        try:
            read = msgpack.unpackb(blob)
            pairs = {str(name): [float(numerator), float(count)] for name, (numerator, count) in read.items()}
        except (AttributeError, TypeError, ValueError, msgpack.UnpackException) as error:
            raise ValueError(f"{len(blob)} bytes are not metrics of another rank: {error}") from error
        new = cls()
        new._pairs = pairs
        return new

    def _join(self, name: str, join: Callable[[float, float], float], value: float, count: float) -> None:
        pair = self._pairs.get(name)
        self._pairs[name] = [value, count] if pair is None else [join(pair[0], value), pair[1] + count]


def last_word(name: str) -> str:
    """What follows the last `/` or `_` of a name."""
    return re.split(r"[/_]", name)[-1]
