"""A text game: find a number by guessing, with `higher` and `lower` as the answers, within rollout.max_turns."""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

from asyncrl.data.rows import PromptRow
from asyncrl.data.values import Json, kind
from asyncrl.envs.base import EnvironmentDeps, Message, StepResult, turn_of
from asyncrl.envs.rewards.result import Reward

LOW, HIGH = 0, 9
MOST_DIGITS = 18
_NUMBER = re.compile(rf"\s*(-?\d{{1,{MOST_DIGITS}}})\s*", re.ASCII)


@dataclass(frozen=True)
class Game:
    """One game: the number to find is in low..high, both included."""

    low: int
    high: int
    secret: int

    def answer(self, text: str) -> str | None:
        """What is said to a guess; None: it is right."""
        found = _NUMBER.fullmatch(text)
        guess = int(found[1]) if found else None
        if guess is None or not self.low <= guess <= self.high:
            return f"a number from {self.low} to {self.high}"
        if guess == self.secret:
            return None
        return "higher" if self.secret > guess else "lower"


class TextGame:
    """The whole answer must be a number; anything else costs a turn, too. 1 if it is found in time, else 0.

    The range is the row's extra_info.low and high (0 and 9 without them), the number its ground truth; a row without
    one has a number drawn by the episode's seed. An answer that was cut ends the game.
    """

    scores_itself = True

    def __init__(self, deps: EnvironmentDeps) -> None:
        self._max_turns = deps.config.max_turns

    async def reset(self, row: PromptRow, *, seed: int) -> tuple[Message, ...]:
        """The row's own messages. Raises ValueError for a row that holds no game."""
        self._game, self._turn = game_of(row, seed), 0
        return row.messages

    async def step(self, text: str, finish_reason: str) -> StepResult:
        """`higher`, `lower`, or the end."""
        self._turn += 1
        said = self._game.answer(text)
        if said is not None and finish_reason == "stop" and self._turn < self._max_turns:
            return StepResult(messages=({"role": "user", "content": said},))
        return StepResult(done=True, reward=Reward(1.0 if said is None else 0.0, None, {"guesses": float(self._turn)}))

    def snapshot(self) -> Mapping[str, object]:
        """The guesses so far; row and seed say the rest."""
        return {"turn": self._turn}

    async def restore(self, row: PromptRow, *, seed: int, state: Mapping[str, object]) -> tuple[Message, ...]:
        """As reset, with these guesses behind it."""
        messages = await self.reset(row, seed=seed)
        self._turn = turn_of(state)
        return messages


def game_of(row: PromptRow, seed: int) -> Game:
    """The game that a row describes.

    Raises:
        ValueError: a range that is none, or a truth outside it; the message names the row and the field.
    """
    low, high = (
        _integer(row, f"extra_info.{name}", row.extra_info.get(name, default))
        for name, default in (("low", LOW), ("high", HIGH))
    )
    if low >= high:
        raise ValueError(f"row {row.index}: extra_info.low = {low} must be below extra_info.high = {high}")
    if row.ground_truth is None:
        return Game(low, high, random.Random(seed).randint(low, high))
    secret = _integer(row, "the ground truth", row.ground_truth)
    if not low <= secret <= high:
        raise ValueError(f"row {row.index}: the ground truth {secret} is not in {low}..{high}: nobody could find it")
    return Game(low, high, secret)


def _integer(row: PromptRow, field: str, value: Json) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value)
    raise ValueError(f"row {row.index}: {field} is {kind(value)}, wanted a whole number")
