"""Weights as a schedule: one cycle of draws in which each source has exactly its share, and never runs ahead or behind.

After any number of draws each source has had its share of them to within one draw. Source: R. Tijdeman, The chairman
assignment problem, Discrete Mathematics 32 (1980), theorem 1; with k sources no count is off by more than
1 - 1 / (2k - 2).
"""

from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm

from asyncrl.errors import DataError

MAX_CYCLE = 10_000
"""Draws in a cycle; it is a table of so many bytes or more."""


def whole_weights(weights: Sequence[float]) -> list[int]:
    """The smallest whole numbers in the ratio of the weights, each taken as the decimal it is written as.

    Raises:
        DataError: their sum is above MAX_CYCLE, so shares could be kept only over very many prompts.
    """
    exact = [Fraction(repr(weight)) for weight in weights]
    scale = lcm(*(weight.denominator for weight in exact))
    whole = [int(weight * scale) for weight in exact]
    whole = [weight // gcd(*whole) for weight in whole]
    if sum(whole) > MAX_CYCLE:
        shown = ", ".join(f"{weight:g}" for weight in weights)
        raise DataError(
            f"data.sources has the weights {shown}, whose shares come out exactly only every {sum(whole)} prompts "
            f"(at most {MAX_CYCLE}). Use rounder weights, such as 0.7 and 0.3."
        )
    return whole


def cycle_of(weights: Sequence[float]) -> list[int]:
    """The source of each draw of one cycle, as places in `weights`; as long as whole_weights adds up to."""
    whole = whole_weights(weights)
    length, slack = sum(whole), max(2 * len(whole) - 2, 1)
    drawn, cycle = [0] * len(whole), []
    for number in range(1, length + 1):
        # Whole numbers instead of fractions: `owed` is the share so far less the draws so far, times length and slack.
        owed = [(weight * number - have * length) * slack for weight, have in zip(whole, drawn, strict=True)]
        due = [source for source in range(len(whole)) if owed[source] >= length or len(whole) == 1]
        chosen = min(due, key=lambda source: (_deadline(whole[source], drawn[source], length, slack), source))
        drawn[chosen] += 1
        cycle.append(chosen)
    return cycle


def _deadline(weight: int, drawn: int, length: int, slack: int) -> int:
    """The draw by which a source must have come, or it would fall too far behind."""
    return -(-(length * (slack - 1) + slack * drawn * length) // (slack * weight))
