"""Choose one row of the table, and say why in a sentence."""

from collections.abc import Sequence
from dataclasses import dataclass

from asyncrl.tuning.search import Row

NEARLY = 0.9
"""A row with this share of the highest tokens per second is as good: what is left is within a prediction's error."""
BIAS = 0.05
"""Smallest difference of lengths that is called one, as in the report on length bias."""
STALE = 0.1
"""Largest share of groups that may be sampled in vain."""


@dataclass(frozen=True)
class Recommendation:
    """The row, and why."""

    row: Row
    why: str


def recommend(rows: Sequence[Row]) -> Recommendation:
    """The freshest of the rows that are nearly as fast as the fastest; rows that select on length are left out.

    Lag is what learning pays for speed, so that of two equally fast rows the one with less lag is the better. `wait` is
    before `drop` whatever the lag: answers that are late for a slow tool are lost without a trace in their lengths.

    Raises:
        ValueError: there is no row.
    """
    if not rows:
        raise ValueError("there is no setting to choose from")
    fair = [row for row in rows if abs(row.prediction.length_bias) < BIAS and row.prediction.stale_share <= STALE]
    candidates = fair or list(rows)
    best = max(row.prediction.tokens_per_s for row in candidates)
    fast = [row for row in candidates if row.prediction.tokens_per_s >= NEARLY * best]
    chosen = min(fast, key=_order)
    return Recommendation(chosen, _why(chosen, rows, candidates, best, is_fair=bool(fair)))


def _order(row: Row) -> tuple[bool, float, float]:
    # In optimizer steps: a version of several is as many old for each version of lag, and half of it when fresh.
    per_version = row.setting.steps_per_version
    steps = row.prediction.lag_mean * per_version + (per_version - 1) / 2
    return row.setting.policy == "drop", round(steps, 1), -row.prediction.tokens_per_s


def _why(chosen: Row, rows: Sequence[Row], candidates: Sequence[Row], best: float, *, is_fair: bool) -> str:
    setting, found = chosen.setting, chosen.prediction
    share = found.tokens_per_s / best
    parts = [
        f"limit {setting.limit} with {setting.policy}, {_counted(setting.steps_per_version, 'step')} a version, "
        f"{_counted(setting.servers, 'server')} and {_counted(setting.ranks, 'rank')}: "
        f"{found.tokens_per_s:,.0f} tokens/s at a mean lag of {found.lag_mean:.1f}, {_limited_by(chosen)}"
    ]
    if share < 1:
        fastest = max(candidates, key=lambda row: row.prediction.tokens_per_s)
        parts.append(
            f"the fastest row, limit {fastest.setting.limit} with {fastest.setting.policy} and "
            f"{_counted(fastest.setting.steps_per_version, 'step')} a version, is {1 / share - 1:.0%} "
            f"faster at a mean lag of {fastest.prediction.lag_mean:.1f}"
        )
    if is_fair and (num_left_out := len(rows) - len(candidates)):
        rows_left = f"{_counted(num_left_out, 'row')} {'are' if num_left_out > 1 else 'is'}"
        parts.append(f"{rows_left} left out, where dropping selects on length or wastes groups")
    if not is_fair:
        parts.append("every row selects on length or wastes groups, so this is the best of a bad choice")
    return "; ".join(parts) + "."


def _limited_by(row: Row) -> str:
    """Who waits for whom."""
    found = row.prediction
    if found.stall_share < 0.1:
        return f"the trainer is the limit (it waits {found.stall_share:.0%} of the time)"
    if found.refused_share > 0.5:
        return (
            f"the window is the limit (the trainer waits {found.stall_share:.0%} of the time, workers may start "
            f"nothing for {found.refused_share:.0%})"
        )
    return f"generation is the limit (the trainer waits {found.stall_share:.0%} of the time)"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"
