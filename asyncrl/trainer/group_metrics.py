"""Metrics of groups as the buffer's index shows them: lag and age of those trained on, lengths of those that left."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TypeVar

from asyncrl.report.answer_lengths import class_of
from buffer.answers import Entry, LeftGroup

Sampled = Entry | LeftGroup
Kind = TypeVar("Kind", Entry, LeftGroup)


def answers(groups: Sequence[Kind], group_size: int) -> list[Kind]:
    """The groups with what was sampled alone: a greedy answer stands behind `group_size` others."""
    return [
        replace(group, tokens=group.tokens[:group_size], sampled=group.sampled[:group_size])
        if len(group.sampled) > group_size
        else group
        for group in groups
    ]


def consumed(entries: Sequence[Entry]) -> dict[str, float]:
    """Lag and age of the groups that were trained on; their answers by source and by length class."""
    if not entries:
        return {}
    lags, ages = [entry.lag for entry in entries], [entry.age_s for entry in entries]
    values = {
        "buffer/num_groups": float(len(entries)),
        "buffer/num_answers": float(len(_lengths(entries))),
        "buffer/num_bytes": float(sum(entry.num_bytes for entry in entries)),
        "buffer/lag_max": float(max(lags)),
        "buffer/lag_mean": sum(lags) / len(lags),
        "buffer/age_s/mean": sum(ages) / len(ages),
        "buffer/age_s/max": max(ages),
        "response_length/in_group_std": _in_group_std(entries),
    }
    values |= {f"training/off_policy/lag/{lag}": float(lags.count(lag)) for lag in sorted(set(lags))}
    for source, groups in _by_source(entries).items():
        values[f"buffer/num_groups/{source}"] = float(len(groups))
        values[f"buffer/num_answers/{source}"] = float(len(_lengths(groups)))
        values |= _classes(f"response_length/{source}", groups)
    return values


def left(groups: Sequence[LeftGroup], entries: Sequence[Entry]) -> dict[str, float]:
    """Groups that left instead of being trained, with their lengths: dropping by age selects short answers.

    Args:
        groups: those that left at the leases of this step.
        entries: those trained on, which the shares are taken with.
    """
    values = {"buffer/num_left": float(len(groups)), "buffer/left_frac": _share(len(groups), len(entries))}
    for reason in sorted({group.reason for group in groups}):
        of_reason, prefix = [group for group in groups if group.reason == reason], f"buffer/left/{reason}"
        values[f"buffer/left_frac/{reason}"] = _share(len(of_reason), len(groups) - len(of_reason) + len(entries))
        values[f"{prefix}/groups"] = float(len(of_reason))
        values[f"{prefix}/answers"] = float(len(_lengths(of_reason)))
        values[f"{prefix}/discarded"] = float(sum(group.outcome == "discarded" for group in of_reason))
        values[f"{prefix}/lag_max"] = float(max(group.lag for group in of_reason))
        values |= _mean(f"{prefix}/response_length/mean", of_reason)
        for source, of_source in _by_source(of_reason).items():
            values[f"{prefix}/groups/{source}"] = float(len(of_source))
            values[f"{prefix}/answers/{source}"] = float(len(_lengths(of_source)))
            values |= _mean(f"{prefix}/response_length/{source}/mean", of_source)
            values |= _classes(f"{prefix}/response_length/{source}", of_source)
    return values | _share_by_length(groups, entries)


def _share_by_length(groups: Sequence[LeftGroup], entries: Sequence[Entry]) -> dict[str, float]:
    """Of the answers in each length class, the share that left; nothing when none did."""
    gone, stayed = (Counter(class_of(length) for length in _lengths(some)) for some in (groups, entries))
    return {
        f"buffer/left_frac/response_length/le_{largest}": _share(gone[largest], stayed[largest])
        for largest in (sorted({*gone, *stayed}) if gone else ())
    }


def _share(part: int, rest: int) -> float:
    return part / (part + rest) if part else 0.0


def _by_source(groups: Iterable[Sampled]) -> Mapping[str, list[Sampled]]:
    found: dict[str, list[Sampled]] = {}
    for group in sorted(groups, key=lambda group: group.data_source):
        found.setdefault(group.data_source, []).append(group)
    return found


def _lengths(groups: Iterable[Sampled]) -> list[int]:
    """Sampled tokens of every answer."""
    return [length for group in groups for length in group.sampled]


def _in_group_std(groups: Iterable[Sampled]) -> float:
    """Standard deviation of an answer's length from the mean of its group."""
    variances = [_variance(group.sampled) for group in groups if group.sampled]
    return math.sqrt(fmean(variances)) if variances else 0.0


def _variance(lengths: Sequence[int]) -> float:
    """Of the population; the module `statistics` computes with fractions, for ten times as long."""
    mean = sum(lengths) / len(lengths)
    return sum((length - mean) ** 2 for length in lengths) / len(lengths)


def _mean(name: str, groups: Iterable[Sampled]) -> dict[str, float]:
    """Mean sampled tokens of an answer; nothing without answers."""
    lengths = _lengths(groups)
    return {name: sum(lengths) / len(lengths)} if lengths else {}


def _classes(prefix: str, groups: Iterable[Sampled]) -> dict[str, float]:
    """Answers by length class; classes without any are left out."""
    counts = Counter(class_of(length) for length in _lengths(groups))
    return {f"{prefix}/le_{largest}": float(counts[largest]) for largest in sorted(counts)}
