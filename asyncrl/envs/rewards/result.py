"""A reward, and how what a reward function returns becomes one."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real

from asyncrl.errors import RewardError

MAX_ANSWER_CHARS = 200


@dataclass(frozen=True)
class Reward:
    """value is finite, or None with an error: such a trajectory is masked and counted, never trained on as 0.

    Attributes:
        answer: what the text was taken to say, the same for texts that say the same, so that they can be counted as
            votes; "" if it says nothing, None if nobody looked.
    """

    value: float | None
    error: str | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    answer: str | None = None

    def __post_init__(self) -> None:
        if (self.value is None) != (self.error is not None):
            raise RewardError("a reward has either a value or an error")
        if self.value is not None and not math.isfinite(self.value):
            raise RewardError(f"a reward of {self.value} is not a number to train on")


def reward_from(returned: object, where: str) -> Reward:
    """The reward a function meant.

    Args:
        returned: a number, a boolean (1 or 0), a numpy scalar, or a mapping with `score`, whose other numbers are
            parts, and `pred`, the answer that it took from the text, if it says so.
        where: the function's name, for the message.
    Raises:
        RewardError: anything else, or a score that is not finite; the message says what was returned.
    """
    if not isinstance(returned, Mapping):
        return Reward(_number(returned, where))
    if "score" not in returned:
        raise RewardError(f"{where} returned a mapping without 'score' (keys: {', '.join(map(repr, returned))})")
    score = _number(returned["score"], f"{where}['score']")
    others = {str(name): value for name, value in returned.items() if name != "score"}
    # Parts are for people to read: text among them, as verl's functions return it, is no reason to fail.
    numbers = {name: _real(value) for name, value in others.items()}
    parts = {name: x for name, x in numbers.items() if x is not None and math.isfinite(x)}
    return Reward(score, None, parts, shortened(returned["pred"]) if "pred" in returned else None)


def shortened(answer: object) -> str:
    """An answer as text, cut where only a text would be longer; "" of None."""
    return "" if answer is None else str(answer).strip()[:MAX_ANSWER_CHARS]


def rewards_in(returned: object, count: int, where: str) -> list[object]:
    """What a function for many answers returned, one for each; `reward_from` reads them.

    Args:
        returned: a list, a tuple or a one-dimensional array. A mapping or a text has a length too, and is none.
        count: answers that it was given.
        where: the function's name, for the message.
    Raises:
        RewardError: something else, or not as many: which answer each belongs to would be a guess.
    """
    to_list = getattr(returned, "tolist", None)
    if callable(to_list) and getattr(returned, "ndim", None) == 1:
        returned = to_list()
    if not isinstance(returned, list | tuple):
        raise RewardError(f"{where} returned {type(returned).__name__} for {count} answers, wanted a list of {count}")
    if len(returned) != count:
        raise RewardError(f"{where} returned {len(returned)} rewards for {count} answers, wanted as many")
    return list(returned)


def _number(returned: object, where: str) -> float:
    value = _real(returned)
    if value is None:
        size = f" of {len(returned)} items" if isinstance(returned, list | tuple) else ""
        raise RewardError(
            f"{where} returned {type(returned).__name__}{size}, wanted one number or a mapping with 'score'. "
            "It scores one answer at a time."
        )
    if not math.isfinite(value):
        raise RewardError(f"{where} returned {value}, which is not a number to train on")
    return value


def _real(value: object) -> float | None:
    if isinstance(value, Real):
        return float(value)
    item = getattr(value, "item", None)  # numpy and torch scalars
    if callable(item) and getattr(value, "ndim", None) == 0:
        inner = item()
        return float(inner) if isinstance(inner, Real) else None
    return None
