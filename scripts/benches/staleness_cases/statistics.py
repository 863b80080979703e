"""Ratios of means over paired seeds with their uncertainty, and whether a falling ESS came before a falling score."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

RESAMPLES = 10_000
SMOOTHED = 3
"""Steps over which ESS is averaged: single batches scatter."""
FALLEN = 0.5
"""A run has collapsed when a held-out score is below this share of the best one before it."""


@dataclass(frozen=True)
class Ratio:
    """A ratio of two means over the same seeds.

    Attributes:
        low, high: 95 % interval, percentile bootstrap over seeds, both means of one draw from the same seeds.
    """

    value: float
    low: float
    high: float
    num_seeds: int

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def paired_ratio(over: Mapping[int, float], under: Mapping[int, float]) -> Ratio | None:
    """Mean of `over` by mean of `under`, over the seeds that both have; None without any, or over a mean of 0.

    Args:
        over, under: final score by seed.
    """
    seeds = sorted(over.keys() & under.keys())
    if not seeds or not any(under[seed] for seed in seeds):
        return None
    pairs_S2 = np.array([[over[seed], under[seed]] for seed in seeds])
    drawn_RS = np.random.default_rng(0).integers(0, len(seeds), (RESAMPLES, len(seeds)))
    means_R2 = pairs_S2[drawn_RS].mean(axis=1)
    ratios = means_R2[:, 0] / np.maximum(means_R2[:, 1], 1e-9)
    low, high = np.percentile(ratios, [2.5, 97.5])
    mean = pairs_S2.mean(axis=0)
    return Ratio(float(mean[0] / mean[1]), float(low), float(high), len(seeds))


def collapse(curve: Sequence[Sequence[float]]) -> int | None:
    """The first step at which the score had fallen to half of the best before; None if it never did."""
    best = 0.0
    for step, score in curve:
        if score < FALLEN * best:
            return int(step)
        best = max(best, score)
    return None


def first_alarm(ess: Sequence[float], threshold: float) -> int | None:
    """The first step at which the mean ESS of the last steps was below `threshold`."""
    for step in range(SMOOTHED, len(ess) + 1):
        if statistics.fmean(ess[step - SMOOTHED : step]) < threshold:
            return step
    return None


@dataclass(frozen=True)
class Foretold:
    """How an alarm on ESS does as a forecast.

    Attributes:
        collapsed, warned: runs that collapsed; those of them with the alarm before.
        ahead: versions between alarm and collapse, of the warned.
        sound, false_alarms: runs that did not collapse; those of them with the alarm.
    """

    threshold: float
    collapsed: int
    warned: int
    ahead: tuple[int, ...]
    sound: int
    false_alarms: int


def foretold(results: Sequence[Mapping[str, Any]], threshold: float) -> Foretold:
    """Judge the alarm on all runs with stale groups."""
    ahead, collapsed, sound, false_alarms = list[int](), 0, 0, 0
    for result in results:
        if result["eta"] == 0:
            continue
        fell = collapse(result["curve"])
        alarm = first_alarm([line["ess"] for line in result["steps"] if "ess" in line], threshold)
        if fell is None:
            sound += 1
            false_alarms += alarm is not None
            continue
        collapsed += 1
        if alarm is not None and alarm < fell:
            ahead.append(fell - alarm)
    return Foretold(threshold, collapsed, len(ahead), tuple(ahead), sound, false_alarms)
