"""What the starter's prompts and demonstrations are made from."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Problem:
    """A prompt, its right answer, and the answers of the behaviours that a warm-started model confuses with it.

    Attributes:
        history: turns behind the answer, (what the model said, what it was told then); the rows of a file have none.
        told_by: the role that tells: `user`, or `tool`.
        truth: the row's ground truth, where that is not the answer.
        extra: what the row's extra_info has besides.
    """

    prompt: str
    answer: str
    decoys: tuple[str, ...]
    history: tuple[tuple[str, str], ...] = ()
    told_by: str = "user"
    truth: str | None = None
    extra: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """One kind of problem.

    Attributes:
        draw: (random source, digits) -> a problem whose numbers have that many digits.
        num_prompts: digits -> how many different prompts there are of that size.
        ability: verl's column of that name.
        data_source: which reward its rows have. None: the one named like the task.
        calls_tools: whether answers are tool calls, which the tokenizer then has tokens for.
    """

    draw: Callable[[random.Random, int], Problem]
    num_prompts: Callable[[int], int]
    ability: str
    data_source: str | None = None
    calls_tools: bool = False
