"""Which reward scores which data source. A new one is a file beside this one and a line here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

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
    """

    compute_score: ComputeScore
    inline: bool = False
    prepare: Callable[[], object] | None = None


REWARDS: Mapping[str, RewardRule] = MappingProxyType(
    {
        "sort_digits": RewardRule(sort_digits.compute_score, inline=True),
        "arithmetic": RewardRule(arithmetic.compute_score, inline=True),
        "gsm8k": RewardRule(gsm8k.compute_score, inline=True),
        "openai/gsm8k": RewardRule(gsm8k.compute_score, inline=True),
        "gsm8k_flexible": RewardRule(gsm8k.compute_flexible_score, inline=True),
        "math": RewardRule(math.compute_score, prepare=math.prepare),
        "HuggingFaceH4/MATH-500": RewardRule(math.compute_score, prepare=math.prepare),
        "DigitalLearningGmbH/MATH-lighteval": RewardRule(math.compute_score, prepare=math.prepare),
        "lighteval/MATH": RewardRule(math.compute_score, prepare=math.prepare),
        "reasoning_gym": RewardRule(reasoning_gym.compute_score, prepare=reasoning_gym.prepare),
    }
)
