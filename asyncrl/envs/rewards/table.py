"""Which reward scores which data source. A new one is a file beside this one and a line here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Protocol

from asyncrl.data.answers import final_number, only_number
from asyncrl.data.boxes import last_box
from asyncrl.data.values import Json
from asyncrl.envs.rewards import arithmetic, gsm8k, math, reasoning_gym, sort_digits


class ComputeScore(Protocol):
    """verl's signature, one answer at a time."""

    def __call__(self, data_source: str, solution_str: str, ground_truth: Json, extra_info: object = None) -> float: ...


@dataclass(frozen=True)
class RewardRule:
    """How one data source is scored.

    inline: cheap and sure to return, so it runs where it is called; all others run in the pool's processes.
    prepare: imports what is slow to import, so that it does not count against the first answer's time.
    answer: what a text is taken to say, None if it says nothing; texts that say the same give the same.
    """

    compute_score: ComputeScore
    inline: bool = False
    prepare: Callable[[], object] | None = None
    answer: Callable[[str], object] | None = None


_GSM8K = RewardRule(gsm8k.compute_score, inline=True, answer=final_number)
_MATH = RewardRule(math.compute_score, prepare=math.prepare, answer=last_box)

REWARDS: Mapping[str, RewardRule] = MappingProxyType(
    {
        "sort_digits": RewardRule(sort_digits.compute_score, inline=True, answer=str),
        "arithmetic": RewardRule(arithmetic.compute_score, inline=True, answer=only_number),
        "gsm8k": _GSM8K,
        "openai/gsm8k": _GSM8K,
        "gsm8k_flexible": RewardRule(
            gsm8k.compute_flexible_score, inline=True, answer=partial(final_number, mode="flexible")
        ),
        "math": _MATH,
        "HuggingFaceH4/MATH-500": _MATH,
        "DigitalLearningGmbH/MATH-lighteval": _MATH,
        "lighteval/MATH": _MATH,
        "reasoning_gym": RewardRule(reasoning_gym.compute_score, prepare=reasoning_gym.prepare),
    }
)
