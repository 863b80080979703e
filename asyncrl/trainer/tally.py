"""A step's metrics on their way to one line: sums and extremes of micro-batches, then of ranks, divided once.

Names whose last part begins with an underscore are sums that only serve for others.
"""

from collections.abc import Mapping

import msgpack
import torch
from torch import Tensor

from asyncrl.algorithms import measures
from asyncrl.algorithms.masking import Metrics


class Tally:
    """(numerator, count) by name, extremes by names that end in max or min, and plain counts."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}
        self._extremes: dict[str, float] = {}
        self._counts: dict[str, float] = {}
        self._later: list[tuple[Metrics, Mapping[str, Tensor], Mapping[str, Tensor]]] = []

    def mean(self, name: str, numerator: float, count: float) -> None:
        """Add to the mean `name`."""
        before = self._sums.get(name, (0.0, 0.0))
        self._sums[name] = (before[0] + numerator, before[1] + count)

    def count(self, name: str, number: float) -> None:
        """Add to the count `name`, which no mean is taken of."""
        self._counts[name] = self._counts.get(name, 0.0) + number

    def extreme(self, name: str, value: float) -> None:
        """Take `value` into the extreme `name`, which ends in max or min."""
        take = min if name.endswith("min") else max
        self._extremes[name] = take(self._extremes.get(name, value), value)

    def spread(self, name: str, values: Tensor) -> None:
        """Mean, largest and smallest of values on the CPU; nothing without values."""
        if values.numel():
            self.mean(f"{name}/mean", float(values.double().sum()), values.numel())
            self.extreme(f"{name}/max", float(values.max()))
            self.extreme(f"{name}/min", float(values.min()))

    def take(self, metrics: Metrics, extremes: Mapping[str, Tensor] | None = None) -> None:
        """Add metrics that are still on a device; they are read all at once, for each reading waits for the device."""
        self._later.append((metrics, extremes or {}, {}))

    def take_counts(self, counts: Mapping[str, Tensor]) -> None:
        """Add to counts that are still on a device, as `take` does to means."""
        self._later.append(({}, {}, counts))

    def merge(self, blob: bytes) -> None:
        """Add another rank's tally."""
        sums, extremes, counts = msgpack.unpackb(blob)
        for name, (numerator, count) in sums.items():
            self.mean(name, numerator, count)
        for name, value in extremes.items():
            self.extreme(name, value)
        for name, number in counts.items():
            self.count(name, number)

    def to_bytes(self) -> bytes:
        """For another rank's `merge`."""
        self._settle()
        packed: bytes = msgpack.packb((self._sums, self._extremes, self._counts))
        return packed

    def values(self) -> dict[str, float]:
        """One number a metric; those measured on nothing are left out."""
        self._settle()
        values = measures.finish(self._sums, self._extremes) | self._counts
        for name, (numerator, count) in self._sums.items():
            if name.endswith("/_weight") and count > 0:
                square = self._sums[name.removesuffix("_weight") + "_square"][0] / count
                values[name.removesuffix("_weight") + "ess"] = (numerator / count) ** 2 / square if square > 0 else 0.0
        return values

    def _settle(self) -> None:
        tensors: list[Tensor] = []
        for metrics, extremes, counts in self._later:
            tensors += [*(part for pair in metrics.values() for part in pair), *extremes.values(), *counts.values()]
        later, self._later = self._later, []
        if not tensors:
            return
        numbers = iter(torch.stack([tensor.detach().double() for tensor in tensors]).tolist())
        for metrics, extremes, counts in later:
            for name in metrics:
                self.mean(name, next(numbers), next(numbers))
            for name in extremes:
                self.extreme(name, next(numbers))
            for name in counts:
                self.count(name, next(numbers))
