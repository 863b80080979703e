"""A second look at answers that math-verify takes for equal, at the numbers in them.

It rounds differences away that are small beside 1, not beside the numbers: 1/2004! would be 1/2006!.
"""

from collections.abc import Sequence
from typing import Any

RELATIVE = 1e-3
"""Largest difference of a decimal to the other number, as a share of the larger one."""


def numbers_agree(gold: Any, answer: Any) -> bool:  # Any: sympy has no types
    """False if a number of the truth differs from the one in its place in the answer.

    Places are the whole, the right side of an equation, the items of tuples, sets and matrices, the ends of intervals.
    Exact ones must be equal, also as a term of a sum (x + 1/2004!); a decimal may differ by RELATIVE. Whatever else is
    there agrees.
    """
    from sympy import Expr

    pair = gold, answer = _sides(gold, answer)
    if isinstance(gold, Expr) and isinstance(answer, Expr):
        return _same(gold, answer)
    gold_parts, answer_parts = (_parts(value) for value in pair)
    if len(gold_parts) != len(answer_parts):
        return True
    if any(getattr(value, "is_FiniteSet", False) for value in pair):
        return all(any(numbers_agree(one, other) for other in answer_parts) for one in gold_parts)
    return all(numbers_agree(one, other) for one, other in zip(gold_parts, answer_parts, strict=True))


def _sides(gold: Any, answer: Any) -> tuple[Any, Any]:
    """`x = 1` and `1`, and `x = 1` and `x = 2`, are compared by their right sides; `x = 1` and `2x = 2` are not."""
    from sympy import Eq

    if isinstance(gold, Eq) and isinstance(answer, Eq):
        return (gold.rhs, answer.rhs) if gold.lhs == answer.lhs else (None, None)
    return (gold.rhs if isinstance(gold, Eq) else gold, answer.rhs if isinstance(answer, Eq) else answer)


def _parts(value: Any) -> Sequence[Any]:
    from sympy import FiniteSet, Interval, MatrixBase, Tuple

    if isinstance(value, Interval):
        return (value.start, value.end)
    if isinstance(value, MatrixBase):
        return tuple(value.flat())
    return value.args if isinstance(value, Tuple | FiniteSet) else ()


def _same(gold: Any, answer: Any) -> bool:
    from sympy import Float

    if not gold.has(Float) and not answer.has(Float):
        difference = gold - answer
        return not (difference.is_number and difference.is_finite and difference.equals(0) is False)
    if not gold.is_number or not answer.is_number:
        return True
    gold, answer = gold.doit(), answer.doit()
    return bool(abs(gold - answer) <= RELATIVE * max(abs(gold), abs(answer)))
