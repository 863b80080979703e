"""How old the weights behind the trained groups were: the histogram of lag at consumption."""

from collections import Counter
from collections.abc import Iterable, Mapping

from asyncrl.report.lines import LAG, Line, by_suffix


def histogram(lines: Iterable[Line]) -> dict[int, int]:
    """Lag, in versions -> groups that were trained on at that lag, over all lines."""
    counts: Counter[int] = Counter()
    for line in lines:
        for lag, groups in by_suffix(line.values, LAG):
            if lag.isdigit():  # lag/mean and lag/max are of tokens
                counts[int(lag)] += int(groups)
    return {lag: counts[lag] for lag in sorted(counts)}


def beyond(counts: Mapping[int, int], limit: int) -> int:
    """Groups trained on past the limit; anything but 0 is a bug."""
    return sum(groups for lag, groups in counts.items() if lag > limit)


def mean(counts: Mapping[int, int]) -> float | None:
    """Mean lag of the groups; None without groups."""
    total = sum(counts.values())
    return sum(lag * groups for lag, groups in counts.items()) / total if total else None
