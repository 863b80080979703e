"""Which prompt an ordinal stands for: pure arithmetic, so that a restart neither skips nor repeats one."""

from collections.abc import Sequence
from typing import Protocol

from asyncrl.data.shares import cycle_of

_MASK = (1 << 64) - 1
_ROUNDS = 6


class Order(Protocol):
    """Ordinal to row. In PromptOrder, MixedOrder."""

    seed: int

    def index(self, ordinal: int) -> int:
        """The row of an ordinal, 0 or more."""
        ...


class PromptOrder:
    """Ordinal to row, for a data set of `size` rows: each epoch holds every row once.

    A permutation is a Feistel network over the next even power of two, walked until it falls inside the data set: no
    table is kept, whatever the size, and any ordinal is answered at once.
    Source: J. Black and P. Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002, section 4.
    """

    def __init__(self, size: int, seed: int, shuffle: bool) -> None:
        if size < 1:
            raise ValueError(f"a data set needs at least one row, not {size}")
        self.size, self.seed, self.shuffle = size, seed, shuffle
        self._half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
        self._half_mask = (1 << self._half_bits) - 1

    def index(self, ordinal: int) -> int:
        """The row of an ordinal, in [0, size).

        Args:
            ordinal: 0 or more. Its epoch is ordinal // size, drawn in an order of its own unless shuffle is off.
        """
        if ordinal < 0:
            raise ValueError(f"ordinals start at 0, not {ordinal}")
        epoch, position = divmod(ordinal, self.size)
        if not self.shuffle:
            return position
        key = mix(mix(self.seed & _MASK) ^ epoch)
        while True:
            position = self._permuted(position, key)
            if position < self.size:  # at most four tries on average: the domain is below four times the size
                return position

    def _permuted(self, value: int, key: int) -> int:
        left, right = value >> self._half_bits, value & self._half_mask
        for number in range(_ROUNDS):
            left, right = right, left ^ (mix(key ^ (number << 56) ^ right) & self._half_mask)
        return left << self._half_bits | right


class MixedOrder:
    """Ordinal to row, for sources that lie one after the other in a data set and have weights.

    Which source an ordinal is of repeats in cycles, in which each has exactly its share, spread evenly (see
    `data.shares`); the n-th ordinal of a source is the n-th of its own PromptOrder. One cycle is kept as a table.

    Args:
        sizes: rows of each source, 1 or more.
        weights: > 0, one a source.
    Raises:
        DataError: the weights have no cycle of a reasonable length.
    """

    def __init__(self, sizes: Sequence[int], weights: Sequence[float], seed: int, shuffle: bool) -> None:
        self.seed = seed
        self.cycle = cycle_of(weights)
        """The source of each ordinal of a cycle."""
        self._starts = [sum(sizes[:i]) for i in range(len(sizes))]
        # Sources of one size must not be drawn in the same order.
        self._orders = [PromptOrder(size, mix(seed & _MASK) ^ mix(i), shuffle) for i, size in enumerate(sizes)]
        self._share = [self.cycle.count(source) for source in range(len(sizes))]
        self._before: list[int] = []
        seen = [0] * len(sizes)
        for source in self.cycle:
            self._before.append(seen[source])
            seen[source] += 1

    def source(self, ordinal: int) -> int:
        """Which source an ordinal is of."""
        return self.cycle[ordinal % len(self.cycle)]

    def index(self, ordinal: int) -> int:
        """The row of an ordinal, counted over all sources."""
        if ordinal < 0:
            raise ValueError(f"ordinals start at 0, not {ordinal}")
        cycles, place = divmod(ordinal, len(self.cycle))
        source = self.cycle[place]
        return self._starts[source] + self._orders[source].index(cycles * self._share[source] + self._before[place])


def mix(value: int) -> int:
    """splitmix64: one 64-bit integer into another that looks unrelated. Source: Steele et al., OOPSLA 2014."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
