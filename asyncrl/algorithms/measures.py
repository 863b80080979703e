"""Metrics of many micro-batches and ranks to numbers: summed pairs are divided once, extremes are taken over all."""

from collections.abc import Iterable, Mapping
from math import isfinite, sqrt
from typing import SupportsFloat

import torch
from torch import Tensor

from asyncrl.algorithms.masking import Metrics

_SMALLEST_VARIANCE = 1e-12


def add(parts: Iterable[Metrics]) -> Metrics:
    """Pairs of several micro-batches, summed by name."""
    summed: Metrics = {}
    for part in parts:
        for name, (numerator, count) in part.items():
            before = summed.get(name, (0.0, 0.0))
            summed[name] = (before[0] + numerator, before[1] + count)
    return summed


def outermost(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Extremes of several micro-batches: the smallest under names ending in min, the largest under the others."""
    taken: dict[str, Tensor] = {}
    for part in parts:
        for name, value in part.items():
            take = torch.minimum if name.endswith("min") else torch.maximum
            taken[name] = take(taken[name], value) if name in taken else value
    return taken


def finish(
    sums: Mapping[str, tuple[SupportsFloat, SupportsFloat]], extremes: Mapping[str, SupportsFloat] | None = None
) -> dict[str, float]:
    """One number a metric, once the sums of all micro-batches and ranks are in.

    Args:
        sums: (numerator, count) by name, in float64: a deviation is the difference of two of them. A metric with
            count 0 was measured on nothing and is left out.
        extremes: by name; one that is not finite was measured on nothing and is left out.
    Returns:
        The quotients, the extremes, and what follows from them: weights/{std, ess, seq_std, seq_max_dev} and
        prob_diff/{std, pearson}. Names whose last part begins with an underscore only served for these.
    """
    counts = {name: float(count) for name, (_, count) in sums.items()}
    means = {name: float(numerator) / counts[name] for name, (numerator, _) in sums.items() if counts[name] > 0}
    values = {name: value for name, value in means.items() if not name.rpartition("/")[2].startswith("_")}
    values |= {name: float(value) for name, value in (extremes or {}).items() if isfinite(float(value))}
    if "weights/_square" in means:
        square = means["weights/_square"]
        values["weights/std"] = _deviation(means["weights/mean"], square)
        values["weights/ess"] = means["weights/mean"] ** 2 / square if square > 0 else 0.0
    if "weights/_seq_square" in means:
        values["weights/seq_std"] = _deviation(
            means["weights/seq_mean"], means["weights/_seq_square"], bessel=counts["weights/seq_mean"]
        )
        row_ends = [values[name] for name in ("weights/seq_max", "weights/seq_min") if name in values]
        values |= {"weights/seq_max_dev": max(abs(end - 1) for end in row_ends)} if row_ends else {}
    if "prob_diff/_square" in means:
        values["prob_diff/std"] = _deviation(
            means["prob_diff/mean"], means["prob_diff/_square"], bessel=counts["prob_diff/mean"]
        )
        values |= _correlation(means)
    return values


def _deviation(mean: float, square: float, *, bessel: float | None = None) -> float:
    variance = max(square - mean * mean, 0.0)
    if bessel is not None:
        variance = variance * bessel / (bessel - 1) if bessel > 1 else 0.0
    return sqrt(variance)


def _correlation(means: Mapping[str, float]) -> dict[str, float]:
    """The Pearson correlation, or nothing where one of the two does not vary."""
    p, q = means["prob_diff/_p"], means["prob_diff/_q"]
    variance_p, variance_q = means["prob_diff/_pp"] - p * p, means["prob_diff/_qq"] - q * q
    if min(variance_p, variance_q) < _SMALLEST_VARIANCE:
        return {}
    return {"prob_diff/pearson": (means["prob_diff/_pq"] - p * q) / sqrt(variance_p * variance_q)}
